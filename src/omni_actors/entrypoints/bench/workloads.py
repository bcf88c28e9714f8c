"""The requests of each workload, and the reading of replies into a :class:`Sample`."""

from __future__ import annotations

import base64
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from omni_actors.entrypoints.bench.client import Reply
from omni_actors.entrypoints.bench.sample import Sample
from omni_actors.entrypoints.bench.sse import EventParser

PROMPTS = (
    "What is the capital of France?",
    "Name three colours of the rainbow and say where one sees them.",
    "Why is the sky blue? Answer in two sentences.",
    "Give me a short recipe for tomato soup.",
    "How does a bicycle stay upright?",
    "Tell me a short story about a lighthouse and a storm.",
    "What should I pack for a week in the mountains?",
    "Explain to a child how bread is made.",
)

SENTENCES = (
    "The harbour was quiet when the first boat came home.",
    "Please leave your wet coat in the hall and come in.",
    "A short walk after dinner clears the head.",
    "The library closes at six, but the garden stays open until dark.",
    "She counted the stairs twice and found one more each time.",
    "Good bread needs flour, water, salt and a great deal of patience.",
    "The train to the coast leaves from platform nine.",
    "Nobody knows who planted the old oak behind the school.",
)

PICTURES = (
    "a seven",
    "the digit three",
    "draw a five",
    "number 0",
    "a handwritten nine",
    "please write the number 4",
    "an image of the numeral 8",
    "a two",
)
"""Prompts that the demo's model of digits understands; any other model makes pictures of them too."""

SAMPLE_BYTES = 2
"""Bytes per sample: ``pcm`` and ``pcm16`` are signed 16-bit samples."""


class BadReply(Exception):
    """The reply was an error or was incomplete; the message says which."""


@dataclass(kw_only=True)
class Workload(ABC):
    """A kind of request. ``prompts`` are used in turn, and ``extra`` is merged into each body.

    ``sample_rate`` (Hz) and ``channels`` apply to audio whose reply does not declare its own. Without ``usage`` each
    text delta counts as one token.
    """

    model: str
    prompts: Sequence[str]
    extra: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = 64
    voice: str = "alloy"
    usage: bool = True
    sample_rate: int = 24000
    channels: int = 1

    path: ClassVar[str]

    def body(self, index: int) -> bytes:
        """Return the body of the ``index``-th request."""
        prompt = self.prompts[index % len(self.prompts)]
        return json.dumps({"model": self.model, **self.fields(prompt), **self.extra}).encode()

    @abstractmethod
    def fields(self, prompt: str) -> dict[str, Any]:
        """Return the fields of the body besides ``model``."""

    @abstractmethod
    async def read(self, reply: Reply, sample: Sample) -> None:
        """Read a 200 reply to its end. Raises :class:`BadReply` unless the reply is complete and has the requested
        content."""

    def seconds(self, nbytes: int, reply: Reply) -> float:
        rate = int(reply.headers.get("x-sample-rate") or self.sample_rate)
        channels = int(reply.headers.get("x-channels") or self.channels)
        return nbytes / (SAMPLE_BYTES * channels * rate)


@dataclass(kw_only=True)
class Chat(Workload):
    """Streamed chat completions, text only."""

    path: ClassVar[str] = "/chat/completions"
    audio: ClassVar[bool] = False

    def fields(self, prompt: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.max_tokens,
            "stream": True,
        }
        if self.usage:
            fields["stream_options"] = {"include_usage": True}
        if self.audio:
            fields |= {"modalities": ["text", "audio"], "audio": {"voice": self.voice, "format": "pcm16"}}
        return fields

    async def read(self, reply: Reply, sample: Sample) -> None:
        usage: dict[str, Any] | None = None
        finished = done = False
        async for now, data in _events(reply):
            if data == b"[DONE]":
                done = True
                continue
            chunk = _json(data)
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                finished |= bool(choice.get("finish_reason"))
                delta = choice.get("delta") or {}
                audio = delta.get("audio") or {}
                if delta.get("content") or audio.get("transcript"):
                    sample.text.append(now)
                if audio.get("data"):
                    sample.audio.append((now, self.seconds(len(base64.b64decode(audio["data"])), reply)))
        if not (done and finished):
            missing = "[DONE]" if finished else "a finish_reason"
            raise BadReply(f"short stream: it ended without {missing}")
        if not sample.text:
            raise BadReply("no text came")
        if self.audio and not sample.audio:
            raise BadReply("no audio came")
        self._count(sample, usage)

    def _count(self, sample: Sample, usage: dict[str, Any] | None) -> None:
        if not self.usage:
            sample.tokens = len(sample.text)
            return
        if usage is None:
            raise BadReply("the reply has no usage (for a server without usage: --no-usage)")
        sample.tokens = int(usage.get("completion_tokens") or 0)
        sample.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        if sample.tokens < 1 or sample.prompt_tokens < 1:
            raise BadReply(f"usage cannot be right: {json.dumps(usage)}")
        if usage.get("total_tokens") != sample.tokens + sample.prompt_tokens:
            raise BadReply(f"usage does not add up: {json.dumps(usage)}")


@dataclass(kw_only=True)
class ChatAudio(Chat):
    """Streamed chat completions with answers in text and speech."""

    audio: ClassVar[bool] = True


@dataclass(kw_only=True)
class Speech(Workload):
    """Speech synthesis as a chunked body of raw samples."""

    path: ClassVar[str] = "/audio/speech"

    def fields(self, prompt: str) -> dict[str, Any]:
        return {"input": prompt, "voice": self.voice, "response_format": "pcm"}

    async def read(self, reply: Reply, sample: Sample) -> None:
        odd = 0
        while part := await reply.receive():
            whole = odd + len(part)
            odd = whole % SAMPLE_BYTES
            sample.audio.append((time.perf_counter(), self.seconds(whole - odd, reply)))
        if odd:
            raise BadReply("short stream: it ended inside a sample")
        if not sample.audio:
            raise BadReply("no audio came")


@dataclass(kw_only=True)
class SpeechEvents(Speech):
    """Speech synthesis as server-sent events."""

    def fields(self, prompt: str) -> dict[str, Any]:
        return {**super().fields(prompt), "stream_format": "sse"}

    async def read(self, reply: Reply, sample: Sample) -> None:
        done: dict[str, Any] | None = None
        async for now, data in _events(reply):
            if data == b"[DONE]":
                continue
            event = _json(data)
            if event.get("type") == "speech.audio.delta":
                sample.audio.append((now, self.seconds(len(base64.b64decode(event["audio"])), reply)))
            elif event.get("type") == "speech.audio.done":
                done = event
        if done is None:
            raise BadReply("short stream: it ended without speech.audio.done")
        if not sample.audio:
            raise BadReply("no audio came")
        if self.usage and not done.get("usage"):
            raise BadReply("the reply has no usage (for a server without usage: --no-usage)")


@dataclass(kw_only=True)
class Images(Workload):
    """Pictures as one JSON body."""

    path: ClassVar[str] = "/images/generations"

    def fields(self, prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "response_format": "b64_json"}

    async def read(self, reply: Reply, sample: Sample) -> None:
        made = _json(await reply.read())
        now = time.perf_counter()
        for picture in made.get("data") or ():
            _check_picture(picture.get("b64_json"))
            sample.images.append(now)
        self._count(sample, len(sample.images), made.get("usage"))

    def _count(self, sample: Sample, pictures: int, usage: dict[str, Any] | None) -> None:
        wanted = int(self.extra.get("n") or 1)
        if pictures != wanted:
            raise BadReply(f"{pictures} pictures came instead of {wanted}")
        sample.pictures = pictures
        if self.usage:
            if usage is None:
                raise BadReply("the reply has no usage (for a server without usage: --no-usage)")
            sample.steps = int(usage.get("steps") or 0)


@dataclass(kw_only=True)
class ImageEvents(Images):
    """Pictures as server-sent events, with two previews."""

    def fields(self, prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "stream": True, "partial_images": 2}

    async def read(self, reply: Reply, sample: Sample) -> None:
        pictures = steps = 0
        usage: dict[str, Any] | None = None
        async for now, data in _events(reply):
            if data == b"[DONE]":
                continue
            event = _json(data)
            if not str(event.get("type")).startswith("image_"):
                continue
            _check_picture(event.get("b64_json"))
            sample.images.append(now)
            if str(event["type"]).endswith(".completed"):
                pictures += 1
                usage = event.get("usage") or usage
                steps += int((usage or {}).get("steps") or 0)
        self._count(sample, pictures, usage)
        sample.steps = steps


WORKLOADS: dict[str, type[Workload]] = {
    "chat": Chat,
    "chat-audio": ChatAudio,
    "speech": Speech,
    "speech-sse": SpeechEvents,
    "images": Images,
    "images-sse": ImageEvents,
}

_OWN_PROMPTS = {Speech: SENTENCES, Images: PICTURES}


def prompts_of(workload: str) -> Sequence[str]:
    """Return the prompts of a workload for which no file of prompts is given."""
    kind = WORKLOADS[workload]
    return next((prompts for base, prompts in _OWN_PROMPTS.items() if issubclass(kind, base)), PROMPTS)


_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF")


def _check_picture(encoded: Any) -> None:
    """Raise :class:`BadReply` unless this is the base64 of a PNG, JPEG or WebP file."""
    data = base64.b64decode(encoded or "")
    if not data.startswith(_SIGNATURES):
        raise BadReply("a picture is no PNG, JPEG or WebP file")


async def _events(reply: Reply) -> AsyncIterator[tuple[float, bytes]]:
    """Yield (arrival, data) of each event. Raises :class:`BadReply` for an error event or an end inside an event."""
    parser = EventParser()
    while part := await reply.receive():
        now = time.perf_counter()
        for data in parser.feed(part):
            yield now, data
    if parser.unfinished:
        raise BadReply("short stream: it ended inside an event")


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        raise BadReply(f"an event is not JSON: {data[:80]!r}") from None
    if not isinstance(value, dict):
        raise BadReply(f"an event is not a JSON object: {data[:80]!r}")
    if value.get("error") or value.get("type") == "error":
        error = value.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        raise BadReply(f"error event: {message or data[:200].decode(errors='replace')}")
    return value
