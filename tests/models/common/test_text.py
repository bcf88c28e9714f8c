"""What is wrong with a tokenizer or a chat template is said when it is loaded, with the file and the line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_actors.models.common.text import Text
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt

OWN = "{% for m in messages %}\n[{{ m.content }}]\n{% endfor %}"
BROKEN = "{% for m in messages %}\n{{ m.content }\n{% endfor %}"


@pytest.fixture
def folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy without weights."""
    return Path(
        shutil.copytree(tiny_model("causal-lm"), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    )


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(OmniError) as caught:
        Text(folder, options)
    assert caught.value.info.status == 500
    return caught.value.info.message


@pytest.mark.parametrize("left", [["tokenizer_config.json"], []])
def test_a_folder_without_a_tokenizer_is_refused_by_name(folder: Path, left: list[str]) -> None:
    for path in folder.glob("tokenizer*"):
        if path.name not in left:
            path.unlink()
    message = refusal(folder)
    assert f"the folder {folder} has no tokenizer" in message
    assert "tokenizer.json, tekken.json, tokenizer.model" in message


def test_a_tokenizer_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    assert f"the tokenizer of {folder} cannot be loaded" in refusal(folder)


def test_a_mistake_in_the_folders_template_is_found_at_load(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(BROKEN)
    assert refusal(folder) == f"the chat template of {template} has a mistake in line 2: unexpected '}}'"
    template.write_text("{{ messages | no_such_filter }}")
    assert f"the chat template of {template} has a mistake in line 1: No filter named" in refusal(folder)


def test_a_template_in_the_tokenizers_config_is_named_by_that(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": BROKEN}))
    assert f"the chat template of {config} has a mistake in line 2" in refusal(folder)


def test_a_file_takes_the_place_of_the_folders_template(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own template.jinja"
    own.write_text(OWN)
    (folder / "chat_template.jinja").write_text(BROKEN)  # not read then
    text = Text(folder, {"chat_template": str(own)})
    messages = [{"role": "user", "content": "hello"}]
    assert text.tokenizer.decode(text.encode_chat(Prompt(messages=messages), messages)) == "[hello]\n"
    own.write_text(BROKEN)
    assert f"the chat template of {own} has a mistake in line 2" in refusal(folder, chat_template=str(own))
    own.write_bytes(b"\xff\xfe")
    assert f"the chat template {own} cannot be read" in refusal(folder, chat_template=str(own))
    own.unlink()
    assert f"the chat template {own} cannot be read" in refusal(folder, chat_template=str(own))


def test_a_raw_prompt_may_hold_control_tokens(folder: Path) -> None:
    text = Text(folder)
    end = text.tokenizer.eos_token_id
    assert text.encode("a<|im_end|>", 100, "prompt")[-1] == end
    assert end not in text.encode_words("a<|im_end|>", 100, "input")
