"""From a chat with images to token ids and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.prompts import Prompts, fill_transcripts
from omni_actors.models.common.text import Text
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput

IMAGES = "images"
"""The port on which a request's images come: payloads of kind ``image``."""

_PROBE = "omni"


@dataclass(slots=True)
class _Waiting:
    prompt: Prompt
    images: dict[int, Image.Image] = field(default_factory=dict)


class PicturedPrompts(Prompts):
    """Turns requests into prompts of token ids, with one of the model's marks for each image: the engine that computes
    the image's features widens the mark. The folder's template renders a chat: most templates with images expect each
    message's content as a list of parts, and some drop plain strings."""

    def __init__(self, text: Text, vocab_size: int, most: int) -> None:
        super().__init__(text, vocab_size, most)
        self._in_parts = text.chats and takes_parts(text.tokenizer)
        self._pictured: dict[int, _Waiting] = {}

    def open(self, work: Work) -> PromptInput:
        prompt = work.params.get("prompt")
        if not isinstance(prompt, Prompt) or prompt.messages is None:
            return super().open(work)
        self._text.check_prompt(prompt, self._most)
        waiting = _Waiting(prompt)
        if IMAGES not in work.ports:
            return self._whole(waiting)
        self._pictured[work.key] = waiting
        return PromptInput()

    def feed(self, key: int, payload: Payload | None, end: bool) -> PromptInput:
        waiting = self._pictured[key]
        if payload is not None:
            if payload.kind != "image":
                raise invalid_request(f"This model takes no {payload.kind}.", param="messages")
            waiting.images[payload.meta["index"]] = Image.fromarray(payload.tensors["pixels"].copy())
        return self._whole(waiting) if end else PromptInput()

    def close(self, key: int) -> None:
        self._pictured.pop(key, None)
        super().close(key)

    def _whole(self, waiting: _Waiting) -> PromptInput:
        messages, shown = self._written(waiting)
        tokens = self._text.encode_chat(waiting.prompt, messages, self._most)
        return PromptInput(tokens, media={"image": shown} if shown else {})

    def _written(self, waiting: _Waiting) -> tuple[list[dict[str, Any]], list[Image.Image]]:
        """Return the messages in the template's form, and the images in order. Raises 400 for a part that is neither
        text nor a received image."""
        messages = waiting.prompt.messages or []
        if not self._in_parts:
            return fill_transcripts(messages, {}), []
        shown: list[Image.Image] = []

        def convert(part: dict[str, Any]) -> dict[str, Any]:
            kind = part.get("type")
            if kind == "text":
                return {"type": "text", "text": part.get("text", "")}
            image = waiting.images.get(part.get("index", -1)) if kind == "image" else None
            if image is None:
                raise invalid_request(f"This model takes no content part of type {kind!r} here.", param="messages")
            shown.append(image)
            return {"type": "image"}

        def parts(content: Any) -> Any:
            if isinstance(content, str):
                return [{"type": "text", "text": content}]
            return [convert(part) for part in content] if isinstance(content, list) else content

        return [message | {"content": parts(message.get("content"))} for message in messages], shown


def takes_parts(tokenizer: Any) -> bool:
    """Return whether the chat template iterates over the parts of a content, rather than print the content
    unchanged."""
    told = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
    try:
        text: str = tokenizer.apply_chat_template(told, tokenize=False)
    except Exception:  # whatever a template raises of what it does not know
        return False
    return _PROBE in text and "'type'" not in text and '"type"' not in text
