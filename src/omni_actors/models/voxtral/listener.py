"""Voxtral's decoder and its prompts.

The prompts follow mistral-common's instruct tokenizer, version 7 and later
(https://github.com/mistralai/mistral-common, ``tokens/tokenizers/instruct.py``): marks are tokens of their own, and no
client's text ever becomes a mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from omni_actors.models.common.audio_conditioned_lm import AudioConditionedLM, check_transcription
from omni_actors.models.common.text import check_token_ids
from omni_actors.models.voxtral.pipeline import LANGUAGES
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.params import Prompt, Transcription

MARKS = ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[BEGIN_AUDIO]", "[TRANSCRIBE]")

SYSTEM_WITH_AUDIO = 13
"""The first version of the tokenizer whose conversations may have both a system message and clips."""


class Decoder(AudioConditionedLM):
    model_types = frozenset({"llama", "mistral"})

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        info = super().load(progress)
        tokenizer = self.text.tokenizer
        known = tokenizer.get_vocab()
        if missing := [mark for mark in MARKS if mark not in known]:
            message = f"the tokenizer of {self.hello.model} has no {missing[0]}"
            raise OmniError(ErrorInfo(message=message, code="bad_model", status=500))
        self._marks = {mark: known[mark] for mark in MARKS}
        assert self.hello.model is not None
        self._version = _version(Path(self.hello.model))
        return info | {"chat": True}

    def transcription_tokens(self, asked: Transcription) -> list[int]:
        if asked.prompt:
            raise invalid_request("This model takes no prompt for a transcription.", param="prompt")
        code = check_transcription(asked, LANGUAGES)
        marks = self._marks
        tokens = [marks["<s>"], marks["[INST]"], marks["[BEGIN_AUDIO]"], self.audio_token, marks["[/INST]"]]
        return tokens + ([] if code is None else self._encode(f"lang:{code}")) + [marks["[TRANSCRIBE]"]]

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        bos = self._marks["<s>"]
        if prompt.token_ids is not None:
            return check_token_ids(prompt.token_ids, self.decoder.vocab_size)
        if prompt.text is not None:
            return [bos, *self._encode(prompt.text)]
        if prompt.chat_template_kwargs:
            name = min(prompt.chat_template_kwargs)
            raise invalid_request("This model's chats take no variables.", f"chat_template_kwargs.{name}")
        return [bos, *self._chat(prompt)]

    def _chat(self, prompt: Prompt) -> list[int]:
        messages = prompt.messages or []
        self._check_roles(messages, prompt.continue_final_message)
        marks = self._marks
        tokens: list[int] = []
        for (role, _), group in groupby(enumerate(messages), key=_speaker):
            inner: list[int] = []
            for piece in _joined(message.get("content") for _, message in group):
                inner += [marks["[BEGIN_AUDIO]"], self.audio_token] if piece is None else self._encode(piece)
            if role == "system":
                tokens += [marks["[SYSTEM_PROMPT]"], *inner, marks["[/SYSTEM_PROMPT]"]]
            elif role == "user":
                tokens += [marks["[INST]"], *inner, marks["[/INST]"]]
            else:
                tokens += [*inner, marks["</s>"]]
        if prompt.continue_final_message:
            tokens.pop()
        return tokens

    def _check_roles(self, messages: list[dict[str, Any]], continued: bool) -> None:
        roles = [message["role"] for message in messages]
        if unknown := set(roles) - {"system", "user", "assistant"}:
            raise invalid_request(f"This model has no messages of role {min(unknown)!r}.", param="messages")
        last = "assistant" if continued else "user"
        if not roles or roles[-1] != last:
            raise invalid_request(f"The last message must be of role {last!r}.", param="messages")
        clips = any(_clips(message.get("content")) for message in messages)
        if clips and "system" in roles and self._version < SYSTEM_WITH_AUDIO:
            raise invalid_request("This model takes no system message in a conversation with clips.", param="messages")
        if any(message["role"] != "user" and _clips(message.get("content")) for message in messages):
            raise invalid_request("Only a user's message may bring clips.", param="messages")

    def _encode(self, text: str) -> list[int]:
        """Return a text's tokens; the name of a mark inside the text is text too."""
        ids: list[int] = self.text.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        return ids


def _speaker(placed: tuple[int, dict[str, Any]]) -> tuple[str, int]:
    """Messages with the same one are one turn: neighbours of one role, but for system messages."""
    place, message = placed
    return message["role"], place if message["role"] == "system" else -1


def _clips(content: Any) -> bool:
    return isinstance(content, list) and any(part.get("type") == "audio" for part in content)


def _joined(contents: Any) -> Iterator[str | None]:
    """Neighbouring messages of one role as one: texts side by side are joined by an empty line, ``None`` is a clip."""
    texts: list[str] = []
    for content in contents:
        for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            if part.get("type") == "text":
                if part["text"]:
                    texts.append(part["text"])
                continue
            if texts:
                yield "\n\n".join(texts)
                texts = []
            yield None
    if texts:
        yield "\n\n".join(texts)


def _version(folder: Path) -> int:
    """Return the version of the folder's tokenizer from ``tekken.json``; 0 without the file."""
    try:
        return int(json.loads((folder / "tekken.json").read_text())["config"]["version"].lstrip("v"))
    except FileNotFoundError:
        return 0
