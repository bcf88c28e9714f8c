"""From a chat to token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.text import Text, check_token_ids
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput

TRANSCRIPTS = "transcripts"
"""The port on which the text of the prompt's audio parts comes: payloads with ``text`` and ``index`` in their meta."""


@dataclass(slots=True)
class _Waiting:
    prompt: Prompt
    transcripts: dict[int, str] = field(default_factory=dict)


class Prompts:
    """Turns requests into prompts of token ids, each below ``vocab_size``, at most about ``most`` ids. A prompt with
    audio parts waits for the transcripts from another stage."""

    def __init__(self, text: Text, vocab_size: int, most: int) -> None:
        self._text = text
        self._vocab_size = vocab_size
        self._most = most
        self._waiting: dict[int, _Waiting] = {}

    def open(self, work: Work) -> PromptInput:
        prompt = work.params.get("prompt")
        if not isinstance(prompt, Prompt):
            raise invalid_request("The request has no prompt.", param="messages")
        if TRANSCRIPTS in work.ports:
            self._waiting[work.key] = _Waiting(prompt)
            return PromptInput()
        return PromptInput(self._tokens(prompt, {}), continued=prompt.messages is None)

    def feed(self, key: int, payload: Payload | None, end: bool) -> PromptInput:
        waiting = self._waiting[key]
        if payload is not None:
            index = payload.meta.get("index", len(waiting.transcripts))
            waiting.transcripts[index] = waiting.transcripts.get(index, "") + payload.meta["text"]
        return PromptInput(self._tokens(waiting.prompt, waiting.transcripts)) if end else PromptInput()

    def close(self, key: int) -> None:
        self._waiting.pop(key, None)

    def _tokens(self, prompt: Prompt, transcripts: Mapping[int, str]) -> list[int]:
        if prompt.token_ids is not None:
            return check_token_ids(prompt.token_ids, self._vocab_size)
        if prompt.text is not None:
            return self._text.encode(prompt.text, self._most, "prompt")
        return self._text.encode_chat(prompt, fill_transcripts(prompt.messages or [], transcripts), self._most)


def fill_transcripts(messages: list[dict[str, Any]], transcripts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the same messages with text contents only: an audio part becomes its transcript.

    Raises :class:`OmniError` (400) for a part that is neither text nor a clip with a transcript.
    """
    return [
        message if not isinstance(message.get("content"), list) else message | {"content": _join(message, transcripts)}
        for message in messages
    ]


def _join(message: dict[str, Any], transcripts: Mapping[int, str]) -> str:
    pieces: list[str] = []
    for part in message["content"]:
        kind = part.get("type")
        if kind == "text":
            pieces.append(part.get("text", ""))
        elif kind == "audio" and part.get("index") in transcripts:
            pieces.append(transcripts[part["index"]].strip())
        else:
            raise invalid_request(f"This model takes no content part of type {kind!r}.", param="messages")
    return "\n".join(piece for piece in pieces if piece)
