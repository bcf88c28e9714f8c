"""How a plain Hugging Face folder is read, and which prompts it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import hello, load_adapter, work

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.causal_lm.fused import FusedDecoder
from omni_actors.models.causal_lm.generic import GenericDecoder
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_models.save(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def adapter(folder: Path) -> CausalLM:
    return load_adapter(str(folder))


def refusal(adapter: CausalLM, prompt: Prompt) -> tuple[int, str | None]:
    with pytest.raises(OmniError) as caught:
        adapter.open(work(0, prompt))
    return caught.value.info.status, caught.value.info.param


def test_a_known_architecture_runs_fused_unless_told_otherwise(folder: Path, adapter: CausalLM) -> None:
    assert isinstance(adapter.decoder, FusedDecoder)
    assert isinstance(load_adapter(str(folder), fused=False).decoder, GenericDecoder)


def test_what_ends_an_answer_and_how_it_samples_come_from_the_generation_config(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = Path(tiny_models.save(tmp_path_factory.mktemp("generation")))
    config = {
        "eos_token_id": [256, 257],
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "transformers_version": "5",
    }
    (folder / "generation_config.json").write_text(json.dumps(config))
    made = load_adapter(str(folder))
    assert made.eos == {256, 257}
    assert made.sampling_defaults == {"temperature": 0.6, "top_k": 20}


def test_the_context_can_be_shortened_but_not_stretched(folder: Path) -> None:
    assert load_adapter(str(folder), max_model_len=100).max_model_len == 100
    with pytest.raises(OmniError, match="made for 512"):
        CausalLM(hello(str(folder), max_model_len=513)).load(lambda text, fraction: None)


@pytest.mark.parametrize(
    "name", ["chat_template", "tokenize", "add_generation_prompt", "messages", "conversation", "max_length"]
)
def test_a_request_brings_variables_of_the_template_and_nothing_else(adapter: CausalLM, name: str) -> None:
    """A template of a client's own could keep the worker busy for ever."""
    prompt = Prompt(messages=[{"role": "user", "content": "hi"}], chat_template_kwargs={name: "x"})
    assert refusal(adapter, prompt) == (400, f"chat_template_kwargs.{name}")


def test_a_chat_becomes_what_the_template_writes(adapter: CausalLM) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert adapter.vocabulary is not None
    decode = adapter.vocabulary.tokenizer.decode
    tokens = adapter.open(work(0, Prompt(messages=messages))).tokens
    assert decode(tokens, skip_special_tokens=False) == "<|start|>user\na\nb<|end|>\n<|start|>assistant\n"
    plain = adapter.open(work(0, Prompt(messages=messages, add_generation_prompt=False))).tokens
    assert decode(plain, skip_special_tokens=False).endswith("<|end|>\n")


def test_an_answer_can_be_continued(adapter: CausalLM) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The sea"}]
    tokens = adapter.open(work(0, Prompt(messages=messages, continue_final_message=True))).tokens
    assert adapter.vocabulary is not None
    assert adapter.vocabulary.tokenizer.decode(tokens, skip_special_tokens=False).endswith("assistant\nThe sea")


def test_text_and_token_ids_are_taken_as_they_are(adapter: CausalLM) -> None:
    by_text = adapter.open(work(0, "Once"))
    assert by_text.continued
    assert adapter.open(work(0, Prompt(token_ids=by_text.tokens))).tokens == by_text.tokens


@pytest.mark.parametrize("token", [-1, 258, 10**9])
def test_token_ids_outside_the_vocabulary_are_refused(adapter: CausalLM, token: int) -> None:
    assert refusal(adapter, Prompt(token_ids=[1, token])) == (400, "prompt")


@pytest.mark.parametrize("param", ["prompt", "messages"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(adapter: CausalLM, param: str) -> None:
    text = "x" * (adapter.max_model_len * adapter._text._longest + 1)
    prompt = Prompt(text=text) if param == "prompt" else Prompt(messages=[{"role": "user", "content": text}])
    text_of = adapter._text
    text_of.tokenizer, tokenizer = _Unencoded(text_of.tokenizer), text_of.tokenizer
    try:
        with pytest.raises(OmniError) as refused:
            adapter.open(work(0, prompt))
    finally:
        text_of.tokenizer = tokenizer
    assert (refused.value.info.code, refused.value.info.param) == ("context_length_exceeded", param)


class _Unencoded:
    """A tokenizer that renders chats and encodes nothing."""

    def __init__(self, tokenizer: Any) -> None:
        self.chat_template = tokenizer.chat_template
        self.apply_chat_template = tokenizer.apply_chat_template


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "audio", "index": 0}, {}])
def test_parts_that_it_cannot_read_are_refused(adapter: CausalLM, part: dict[str, Any]) -> None:
    assert refusal(adapter, Prompt(messages=[{"role": "user", "content": [part]}])) == (400, "messages")


def test_what_the_template_refuses_is_the_clients_mistake(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tiny_models.save(tmp_path_factory.mktemp("strict")))
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    made = load_adapter(str(folder))
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(OmniError, match="roles must alternate"):
        made.open(work(0, Prompt(messages=messages)))
    assert refusal(made, Prompt(messages=messages)) == (400, "messages")


def test_a_model_without_a_template_takes_no_chat(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tiny_models.save(tmp_path_factory.mktemp("base")))
    (folder / "chat_template.jinja").unlink()
    assert refusal(load_adapter(str(folder)), Prompt(messages=[{"role": "user", "content": "x"}])) == (400, "messages")
