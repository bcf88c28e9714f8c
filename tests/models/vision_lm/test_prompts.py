"""Chats with images become token ids and pictures in the order of their marks, whatever order they came in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.engines.ar_driver import hello, work
from tests.worker.engines.tiny_models import CHAT_TEMPLATE, tokenizer

from omni_actors.connectors.payload import Payload
from omni_actors.models.vision_lm.prompted import PromptedVLM
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engines.autoregressive.adapter import PromptInput

PARTS = (
    "{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


def adapter(folder: Path, template: str = PARTS) -> PromptedVLM:
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    words.chat_template = template
    words.save_pretrained(folder)
    text = {"model_type": "llama", "vocab_size": len(words), "max_position_embeddings": 512}
    mark = words.convert_tokens_to_ids("<image>")
    config = {"model_type": "idefics3", "text_config": text, "image_token_id": mark}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Idefics3ForConditionalGeneration"]}))
    made = PromptedVLM(hello(str(folder)))
    made.load(lambda text, fraction: None)
    return made


def ask(it: PromptedVLM, messages: list[dict[str, Any]], *indices: int) -> PromptInput:
    """The prompt, after images of these indices came, each of its index's grey."""
    asked = work(1, Prompt(messages=messages), ports=("images",) if indices else ())
    opened = it.open(asked)
    if not indices:
        return opened
    assert not opened.tokens
    for index in indices:
        grey = np.full((2, 3, 3), index, np.uint8)
        it.feed(1, "images", Payload("image", {"index": index}, {"pixels": grey}), False)
    return it.feed(1, "images", None, True)


def user(*parts: str | int) -> dict[str, Any]:
    """Texts, and images by their index."""
    told = [{"type": "text", "text": it} if isinstance(it, str) else {"type": "image", "index": it} for it in parts]
    return {"role": "user", "content": told}


def test_images_are_in_the_order_of_their_marks(tmp_path: Path) -> None:
    it = adapter(tmp_path)
    made = ask(it, [user("a", 0, "b"), {"role": "assistant", "content": "c"}, user(1)], 1, 0)
    vocabulary = it.vocabulary
    assert vocabulary is not None
    assert vocabulary.tokenizer.decode(made.tokens, skip_special_tokens=False) == "a<image>bc<image>"
    assert [np.asarray(image)[0, 0].tolist() for image in made.media["image"]] == [[0] * 3, [1] * 3]
    assert not ask(it, [user("a")]).media


def test_a_mark_that_a_text_writes_is_no_image(tmp_path: Path) -> None:
    it = adapter(tmp_path)
    vocabulary = it.vocabulary
    assert vocabulary is not None
    mark = vocabulary.tokenizer.token_to_id("<image>")
    assert isinstance(mark, int)
    for messages, indices in (([user(0, "<image>")], (0,)), ([user("<image>")], ())):
        made = ask(it, messages, *indices)
        assert made.tokens.count(mark) == len(indices)
        assert vocabulary.tokenizer.decode(made.tokens, skip_special_tokens=False).endswith("<image>")
    with pytest.raises(OmniError, match="1 marks of images, and 0 images"):
        it.open(work(1, Prompt(text="a <image>")))
    with pytest.raises(OmniError, match="'image'"):
        ask(it, [user(1)], 0)


def test_a_template_without_parts_takes_text_alone(tmp_path: Path) -> None:
    it = adapter(tmp_path, CHAT_TEMPLATE)
    assert ask(it, [user("a", "b")]).tokens
    with pytest.raises(OmniError, match="'image'"):
        ask(it, [user("a", 0)], 0)
