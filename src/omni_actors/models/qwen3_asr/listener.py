"""Qwen3-ASR's decoder: prompts, and the language named before the transcript."""

from __future__ import annotations

from typing import Any

import msgspec.structs

from omni_actors.models.common.audio_conditioned_lm import AudioConditionedLM, check_transcription
from omni_actors.models.qwen3_asr.languages import LANGUAGES
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Prompt, Transcription
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput, State

MARK = "<asr_text>"
"""The transcript begins behind it; before it stands ``language NAME``."""

HEAD = "language "

LONGEST_HEAD = 64
"""Characters after which an answer without the mark is taken for the transcript itself."""


class Decoder(AudioConditionedLM):
    """Tells the language in the metadata of the first delta: the asked one, or what the model named."""

    model_types = frozenset({"qwen3"})

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._heads: dict[int, Head] = {}

    def open(self, work: Work) -> PromptInput:
        head = _head(work)
        opened = super().open(work)
        self._heads[work.key] = head
        return opened

    def import_state(self, work: Work, state: State) -> None:
        self._heads[work.key] = _head(work)

    def shown(self, delta: TextDelta) -> TextDelta:
        text, language = self._heads[delta.key].push(delta.text, delta.finish_reason)
        meta = delta.meta if language is None else {**(delta.meta or {}), "language": language}
        return msgspec.structs.replace(delta, text=text, meta=meta)

    def close(self, key: int) -> None:
        self._heads.pop(key, None)
        super().close(key)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        raise invalid_request("This model only transcribes.", param="messages")

    def transcription_tokens(self, asked: Transcription) -> list[int]:
        """The asked prompt is the system message; a known language is the beginning of the answer. These are the
        prompts of transformers' ``Qwen3ASRProcessor.apply_transcription_request``."""
        code = check_transcription(asked, LANGUAGES)
        context = asked.prompt or ""
        self.text.check_length(len(context), self.max_model_len, "prompt")
        said = "" if code is None else f"language {LANGUAGES[code]}{MARK}"
        messages: list[dict[str, Any]] = [{"role": "system", "content": [{"type": "text", "text": context}]}]
        messages.append({"role": "user", "content": [{"type": "audio", "audio": ""}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": said}]})
        prompt = Prompt(messages=messages, continue_final_message=True)
        return self.text.encode_chat(prompt, messages)


def _head(work: Work) -> Head:
    asked: Transcription | None = work.params.get("transcription")
    return Head(None if asked is None else check_transcription(asked, LANGUAGES))


class Head:
    """A parser that removes ``language NAME<asr_text>`` from the beginning of an answer in pieces. With ``asked``, the
    language that was asked for, the answer is the transcript alone."""

    def __init__(self, asked: str | None) -> None:
        self._language = asked
        self._held: str | None = "" if asked is None else None

    def push(self, text: str, finish_reason: str | None) -> tuple[str, str | None]:
        """Return the part of the transcript that is certain, and the language's code once known (at the first text).
        The answer is over when ``finish_reason`` is given; a head cut by a limit (``length``) is no transcript."""
        if self._held is None:
            language, self._language = self._language, None
            return text, language
        held = self._held = self._held + text
        head, mark, rest = held.partition(MARK)
        if mark:
            self._held = None
            return rest, self._code(head)
        named = held[: len(HEAD)] == HEAD[: len(held)]
        if finish_reason == "stop" or len(held) > LONGEST_HEAD or not named:
            self._held = None
            return held, None
        return "", None

    def _code(self, head: str) -> str | None:
        name = head.strip().removeprefix(HEAD).strip().lower()
        return next((code for code, language in LANGUAGES.items() if language.lower() == name), None)
