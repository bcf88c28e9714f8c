"""A vision-language model by vLLM: images are parts of a chat, and what it says is what vLLM says by itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.demo.server import Server, serving
from tests.vllm.conftest import EAGER, Direct
from tests.worker.engines.ar_driver import Collector, work

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello, Prefix
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engine import Engine, Work

TOKENS = 24
QUESTION = "what is on it?"

pytestmark = [pytest.mark.deadline(400), pytest.mark.usefixtures("worker_environment")]


def picture(seed: int, height: int = 60, width: int = 90) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(pixels: np.ndarray[Any, Any]) -> str:
    data = BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return b64encode(data.getvalue()).decode()


def asked(images: int) -> list[int]:
    """The chat's tokens, a mark for each image: what the template makes of it."""
    from tests.worker.engines.tiny_models import tokenizer

    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<fake_token_around_image>", "<image>"]})
    text = f"<|start|>user\n{'<image>' * images}{QUESTION}<|end|>\n<|start|>assistant\n"
    tokens: list[int] = words.encode(text, add_special_tokens=False)
    return tokens


def said_by(direct: Direct, folder: Path, *shown: tuple[int, ...]) -> list[list[int]]:
    """What vLLM itself says, greedily, of a chat with these pictures, for each of several."""
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
    requests = [
        {"tokens": asked(len(seeds)), "images": [png(picture(seed)) for seed in seeds], "sampling": sampling}
        for seeds in shown
    ]
    return [answer["tokens"] for answer in direct(folder, requests)]


@pytest.fixture(scope="module")
def loaded(tiny_idefics3: Path, worker_environment: None) -> Iterator[Engine]:
    from omni_actors.worker.engines.vllm import VllmEngine

    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.vllm:VllmEngine",
        adapter="omni_actors.models.vision_lm.prompted:PromptedVLM",
        model=str(tiny_idefics3),
        options={**EAGER, "max_model_len": 512},
    )
    engine = VllmEngine(hello)
    engine.load(lambda text, fraction: None)
    yield engine
    engine.close()


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """At the end no request is held, and nothing of its images."""
    yield loaded
    assert loaded.counters()["requests"] == loaded.counters()["kv_blocks_used"] == 0
    assert not loaded._media  # type: ignore[attr-defined]


def chat(key: int, images: int, text: str = QUESTION, **sampling: Any) -> Work:
    parts: list[dict[str, Any]] = [{"type": "image", "index": index} for index in range(images)]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
    ports = ("images",) if images else ()
    wanted = {"max_tokens": TOKENS, "ignore_eos": True, **sampling}
    return work(key, Prompt(messages=messages), ports=ports, **wanted)


def shown(engine: Engine, it: Work, *pictures: np.ndarray[Any, Any]) -> None:
    engine.admit(it)
    for index, pixels in enumerate(pictures):
        engine.feed(it.key, "images", Payload("image", {"index": index}, {"pixels": pixels}), False)
    engine.feed(it.key, "images", None, True)


def finish(engine: Engine, it: Work) -> list[list[int]]:
    """The tokens of each choice."""
    out = Collector()
    while engine.runnable:
        assert engine.step(out)
    assert not out.errors, out.errors
    return [out.answers[it.key][index].token_ids for index in range(len(out.answers[it.key]))]


def test_an_image_changes_the_answer_which_is_vllms_own(engine: Engine, tiny_idefics3: Path, direct: Direct) -> None:
    one, other, both, none = said_by(direct, tiny_idefics3, (1,), (2,), (1, 2), ())
    assert len({tuple(answer) for answer in (one, other, both, none)}) == 4, "it does not look"
    assert len(set(one)) > 5, "it says nothing"
    for key, (seeds, expected) in enumerate((((1,), one), ((2,), other), ((1, 2), both), ((1,), one)), 1):
        it = chat(key, len(seeds))
        shown(engine, it, *map(picture, seeds))
        assert finish(engine, it) == [expected]
    it = chat(9, 0)
    engine.admit(it)
    assert finish(engine, it) == [none]


def test_choices_share_the_image_and_an_answer_goes_on_behind_what_was_told(engine: Engine) -> None:
    def say(key: int, prefix: Prefix | None = None, **sampling: Any) -> list[list[int]]:
        it = chat(key, 1, **sampling)
        it.prefix = prefix
        shown(engine, it, picture(1))
        return finish(engine, it)

    sampling: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 5}
    whole = say(20, **sampling)
    assert whole[0] != whole[1]
    told = Prefix(tokens=tuple(tuple(choice[:7]) for choice in whole))
    assert say(21, told, **sampling) == [choice[7:] for choice in whole]


def test_what_does_not_fit_is_refused_and_the_rest_goes_on(engine: Engine) -> None:
    def refusal(it: Work, *pictures: np.ndarray[Any, Any]) -> str:
        with pytest.raises(OmniError) as raised:
            shown(engine, it, *pictures)
        engine.abort(it.key)
        assert raised.value.info.status == 400
        return raised.value.info.message

    many = [picture(seed) for seed in range(40)]
    assert "maximum context length" in refusal(chat(30, len(many)), *many)
    assert "'image'" in refusal(chat(31, 2), picture(1))
    written = chat(32, 1, "and this <image>?")  # as words
    shown(engine, written, picture(1))
    assert len(finish(engine, written)[0]) == TOKENS
    it = chat(33, 1)
    shown(engine, it, picture(1))
    assert len(finish(engine, it)[0]) == TOKENS


def test_images_come_over_http(tiny_idefics3: Path, direct: Direct, tmp_path: Path) -> None:
    one, other = said_by(direct, tiny_idefics3, (1,), (2,))
    quick = (
        *("--set", "stages.llm.options.arguments={enforce_eager: true}"),
        *("--set", "stages.llm.options.kv_memory_mib=64"),
        *("--set", "stages.llm.threads=1"),
    )

    def ask(server: Server, part: dict[str, Any]) -> tuple[int, Any]:
        content = [part, {"type": "text", "text": QUESTION}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, "temperature": 0}
        return server.post("/v1/chat/completions", {**body, "ignore_eos": True})

    with serving(tmp_path, str(tiny_idefics3), "--platform", "cpu", *quick, start_s=300) as server:
        from transformers import AutoTokenizer

        words = AutoTokenizer.from_pretrained(tiny_idefics3, local_files_only=True)
        for seed, expected in ((1, one), (2, other)):
            url = {"url": f"data:image/png;base64,{png(picture(seed))}"}
            status, answer = ask(server, {"type": "image_url", "image_url": url})
            assert status == 200, answer
            text = words.decode(expected, skip_special_tokens=True)
            assert answer["choices"][0]["message"]["content"] == text
            assert answer["usage"]["prompt_tokens"] > len(asked(1))
        sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        status, answer = ask(server, sound)
        assert status == 400, answer
