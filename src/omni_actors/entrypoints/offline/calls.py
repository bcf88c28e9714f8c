"""Calls of the Python API: a verb's arguments, and the request made from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import trio

from omni_actors.entrypoints.offline.arguments import check_request, is_number, sampling_for, section
from omni_actors.entrypoints.offline.output import Output
from omni_actors.entrypoints.offline.prompts import ChatPrompt, Messages
from omni_actors.entrypoints.tts_input import check_tts_input
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import deadline_exceeded, invalid_request
from omni_actors.protocol.languages import chosen_language
from omni_actors.protocol.params import Prompt, Sampling, Speech, Transcription
from omni_actors.protocol.request import MAX_PRIORITY, MediaChunk, MediaRef, Request, StepProgress

Timestamps = Literal["none", "segment", "word"]

_NEUTRAL = Speech()


@dataclass(frozen=True, slots=True)
class Terms:
    """The options that every verb takes."""

    deadline_s: float | None = None
    priority: int = 0
    id: str | None = None

    def check(self) -> None:
        """Raise 400 for an impossible value."""
        if self.deadline_s is not None and not (is_number(self.deadline_s) and self.deadline_s > 0):
            raise invalid_request("'deadline_s' is a number of seconds above 0.", "deadline_s", "invalid_value")
        if type(self.priority) is not int or abs(self.priority) > MAX_PRIORITY:
            raise invalid_request(
                f"'priority' is a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}.", "priority", "invalid_value"
            )
        if self.id is not None and not isinstance(self.id, str):
            raise invalid_request("'id' is a text.", "id", "invalid_value")


@dataclass(frozen=True, slots=True)
class Call(ABC):
    """One call of a verb, with its arguments."""

    terms: Terms

    @property
    def watcher(self) -> Callable[[StepProgress | MediaChunk], None] | None:
        """The function that is told of the request's steps and previews, if the caller gave one."""
        return None

    def streamed(self) -> Call:
        """Return the call for a caller who receives its events. Raises 400 for an argument that has no place there."""
        return self

    @abstractmethod
    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        """Check the arguments, decode the media, and make the request, without its terms.

        Decoded media are added to ``kept``. All checks that need no media come before decoding.
        """


@asynccontextmanager
async def prepared(call: Call, plan: Plan, media: MediaService) -> AsyncIterator[Request]:
    """Make the request of a call; the time for that counts towards the call's deadline. At the end of the block, media
    that no stage has taken are freed."""
    terms = call.terms
    terms.check()
    kept: list[MediaRef] = []
    started = trio.current_time()
    budget = math.inf if terms.deadline_s is None else terms.deadline_s
    try:
        with trio.move_on_after(budget) as scope:
            request = await call.request(plan, media, kept)
        if scope.cancelled_caught:
            raise deadline_exceeded()
        if terms.deadline_s is not None:
            request.deadline_s = terms.deadline_s - (trio.current_time() - started)
        yield request
    finally:
        if kept:
            await media.discard(kept)


@dataclass(frozen=True, slots=True)
class RequestCall(Call):
    """A call of ``run``: the request exists already, with terms of its own."""

    given: Request

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        check_request(plan, self.given)
        return self.given


@dataclass(frozen=True, slots=True)
class ChatCall(Call):
    """A call of ``chat``."""

    messages: Messages
    sampling: Sampling | None
    modalities: Sequence[str]
    voice: str
    language: str | None
    instructions: str | None
    use_audio_in_video: bool
    chat_template_kwargs: Mapping[str, Any] | None

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        if isinstance(self.modalities, str) or not all(isinstance(it, str) for it in self.modalities):
            raise invalid_request("'modalities' is a list, such as ['text', 'audio'].", "modalities", "invalid_value")
        spoken = "audio" in self.modalities
        outputs = tuple(dict.fromkeys(("text", *self.modalities))) if spoken else tuple(self.modalities)
        prompt = ChatPrompt(self.messages)
        inputs = ("text", *sorted(set(prompt.modalities)))
        read = subgraph(plan, "chat", inputs, outputs).sections
        if self.use_audio_in_video and "video" not in inputs:
            raise invalid_request("'use_audio_in_video' needs a video in the messages.", "use_audio_in_video")
        params: dict[str, Any] = {"sampling": sampling_for(plan, "chat", self.sampling)}
        if "transcription" in read:
            params["transcription"] = Transcription(clips=prompt.modalities.count("audio"))
        speech = Speech(voice=self.voice, language=self.language, instructions=self.instructions)
        if spoken:
            params["speech"] = _speech(plan, speech)
        else:
            for name in ("voice", "language", "instructions"):
                if getattr(speech, name) != getattr(_NEUTRAL, name):
                    raise invalid_request(f"'{name}' needs modalities with 'audio'.", name)
        messages, refs = await prompt.decoded(media, self.use_audio_in_video, plan.input_limit("chat", "audio"))
        kept += refs
        params["prompt"] = Prompt(
            messages=messages,
            chat_template_kwargs=dict(self.chat_template_kwargs or {}),
            media_kwargs={"use_audio_in_video": True} if self.use_audio_in_video else {},
        )
        return Request(task="chat", inputs=inputs, outputs=outputs, params=params, media=tuple(refs))


@dataclass(frozen=True, slots=True)
class Batch:
    """A call of ``generate``: many chats under the same terms."""

    terms: Terms
    prompts: Messages | Sequence[Messages]
    sampling: Sampling | None
    modalities: Sequence[str]
    voice: str
    progress: bool
    on_done: Callable[[int, Output], None] | None

    def calls(self) -> list[ChatCall]:
        """Return one call for each chat. Raises 400 for ``prompts`` of another type."""
        return [
            ChatCall(self.terms, chat, self.sampling, self.modalities, self.voice, None, None, False, None)
            for chat in _chats(self.prompts)
        ]


def _chats(prompts: Any) -> list[Messages]:
    """Return the chats of a batch; a single chat is a text or a list of messages."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise invalid_request(
            f"'prompts' takes a text, a list of messages, or a list of these; not {type(prompts).__name__}.",
            "prompts",
            "invalid_value",
        )
    alone = bool(prompts) and isinstance(prompts[0], dict)
    return [prompts] if alone else list(prompts)


@dataclass(frozen=True, slots=True)
class CompletionCall(Call):
    """A call of ``complete``."""

    prompt: str | Sequence[int]
    sampling: Sampling | None

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        subgraph(plan, "completion", ("text",), ("text",))
        prompt = self.prompt
        if not isinstance(prompt, str) and (
            not isinstance(prompt, Sequence) or not all(type(token) is int and 0 <= token < 1 << 31 for token in prompt)
        ):
            raise invalid_request("'prompt' is a text, or a list of token ids.", "prompt", "invalid_value")
        if not prompt:
            raise invalid_request("'prompt' is empty.", "prompt", "invalid_value")
        made = Prompt(text=prompt) if isinstance(prompt, str) else Prompt(token_ids=list(prompt))
        params = {"prompt": made, "sampling": sampling_for(plan, "completion", self.sampling)}
        return Request(task="completion", params=params)


@dataclass(frozen=True, slots=True)
class SpeechCall(Call):
    """A call of ``speak``."""

    text: str
    voice: str
    speed: float
    reference: bytes | Path | None
    fields: Mapping[str, Any]

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        inputs = ("text",) if self.reference is None else ("text", "audio")
        subgraph(plan, "speech", inputs, ("audio",))
        check_tts_input(self.text, "text", most=plan.input_limit("speech", "text"))
        own = [name for name in Speech.__struct_fields__ if name not in ("text", "voice", "speed", "reference")]
        for name in self.fields:
            if name not in own:
                raise invalid_request(
                    f"'{name}' is no field of a speech request; there are: {', '.join(own)}.", name, "unknown_parameter"
                )
        reference = self.reference is not None
        speech = Speech(text=self.text, voice=self.voice, speed=self.speed, reference=reference, **self.fields)
        params = {"speech": _speech(plan, speech)}
        if self.reference is not None:
            longest_s = plan.input_limit("speech", "audio")
            kept.append(await _decoded(media, self.reference, "reference", How(rate=plan.sample_rate), longest_s))
        return Request(task="speech", inputs=inputs, outputs=("audio",), params=params, media=tuple(kept))


@dataclass(frozen=True, slots=True)
class TranscriptionCall(Call):
    """A call of ``transcribe``."""

    audio: bytes | Path
    language: str | None
    prompt: str | None
    temperature: float
    timestamps: Timestamps
    translate: bool
    max_tokens: int | None

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        task = "translation" if self.translate else "transcription"
        subgraph(plan, task, ("audio",), ("text",))
        if self.timestamps not in get_args(Timestamps):
            raise invalid_request(
                f"'timestamps' is one of: {', '.join(get_args(Timestamps))}.", "timestamps", "invalid_value"
            )
        if self.language is not None and not isinstance(self.language, str):
            raise invalid_request("'language' is a text.", "language", "invalid_value")
        transcription = section(
            Transcription(
                language=chosen_language(self.language, plan.languages),
                prompt=self.prompt,
                temperature=self.temperature,
                timestamps=self.timestamps,
                task="translate" if self.translate else "transcribe",
                max_tokens=self.max_tokens,
            ),
            Transcription,
        )
        kept.append(await _decoded(media, self.audio, "audio", How(), plan.input_limit(task, "audio")))
        params = {"transcription": transcription}
        return Request(task=task, inputs=("audio",), params=params, media=tuple(kept))


def _speech(plan: Plan, speech: Speech) -> Speech:
    """Check the section ``speech``: the types of its fields, and that the model honours each field that is set."""
    speech = section(speech, Speech)
    for name, value in msgspec.structs.asdict(speech).items():
        if value != getattr(_NEUTRAL, name) and not plan.pipeline.honours(name):
            raise invalid_request(f"This model does not honour '{name}'.", name, "unsupported_parameter")
    return speech


async def _decoded(
    media: MediaService, source: bytes | Path, param: str, how: How, longest_s: float | None
) -> MediaRef:
    """Decode an audio file, given as bytes or as a path, of at most ``longest_s`` seconds."""
    filename = source.name if isinstance(source, Path) else None
    if isinstance(source, Path):
        source = await trio.Path(source).read_bytes()
    if not isinstance(source, bytes | bytearray | memoryview):
        kind = type(source).__name__
        raise invalid_request(
            f"'{param}' is an audio file: its bytes, or a pathlib.Path to it; not {kind}.", param, "invalid_value"
        )
    return await media.decode(bytes(source), how=how, filename=filename, param=param, max_seconds=longest_s)
