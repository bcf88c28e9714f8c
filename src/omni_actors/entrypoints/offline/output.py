"""The output of a request: :class:`Output`, and its collection from the request's events."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field
from typing import Any

from omni_actors.media.wav import wav_header
from omni_actors.protocol.request import Completed, Event, MediaChunk, StepProgress, TextDelta, TokenLogprob, Usage


@dataclass(slots=True)
class Choice:
    """One completion of a prompt. ``logprobs`` has one entry per token if the sampling parameters ask for them."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a request made.

    Args:
        data: The bytes of the file.
        format: The file's format: ``png``, ``webp`` or ``jpeg``.
        width: The width in pixels.
        height: The height in pixels.
        seed: The seed with which the same request makes this picture again, alone.
        index: The picture's place among the pictures of the request.
    """

    data: bytes
    format: str
    width: int
    height: int
    seed: int
    index: int = 0

    @classmethod
    def of(cls, chunk: MediaChunk) -> Picture:
        """Return the picture, or the preview, of an event."""
        meta = chunk.meta
        return cls(chunk.data, meta["format"], meta["width"], meta["height"], meta["seed"], meta["index"])


@dataclass(slots=True)
class Output:
    """Everything that one request produced.

    >>> from omni_actors import Choice, Output
    >>> Output([Choice(text="Paris.", finish_reason="stop")]).text
    'Paris.'
    >>> spoken = Output([], pcm=bytes(4800), sample_rate=24_000)
    >>> len(spoken.wav())
    4844

    ``choices`` are the texts, one for each of ``n``. ``pcm`` is little-endian signed 16-bit audio at ``sample_rate`` Hz
    with ``channels`` interleaved channels. ``segments`` and ``words`` are the timed parts of a transcription with
    timestamps (dictionaries with ``text`` or ``word``, ``start`` and ``end`` in seconds); ``language`` is the language
    that the recogniser found. ``images`` are the pictures in the order of their indexes. ``usage`` maps a stage's name
    to the stage's consumption and production.
    """

    choices: list[Choice]
    pcm: bytes = b""
    sample_rate: int = 0
    channels: int = 1
    segments: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    language: str | None = None
    usage: dict[str, Usage] = field(default_factory=dict)
    images: list[Picture] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the first choice; empty if there is none."""
        return self.choices[0].text if self.choices else ""

    def wav(self) -> bytes:
        """Return the audio as the bytes of a WAV file with 16-bit samples."""
        return wav_header(self.sample_rate, self.channels, len(self.pcm)) + self.pcm


async def collect(
    events: AsyncIterable[Event], watcher: Callable[[StepProgress | MediaChunk], None] | None = None
) -> Output:
    """Receive a request's events up to the last one and return the whole output.

    >>> import trio
    >>> from omni_actors.entrypoints.offline import collect
    >>> from omni_actors.protocol.request import Completed, TextDelta
    >>> async def events():
    ...     yield TextDelta(1, 0, "Par", [7])
    ...     yield TextDelta(1, 0, "is.", [8], "stop")
    ...     yield Completed(usage={})
    >>> trio.run(collect, events()).choices[0]
    Choice(text='Paris.', token_ids=[7, 8], finish_reason='stop', logprobs=[])

    Args:
        events: The events, such as a request's stream.
        watcher: A function that is told of each step of a picture and of each preview.

    Returns:
        The whole output.

    Raises:
        OmniError: The request failed; earlier events are dropped.
    """
    output = Output([])
    pcm = bytearray()
    async for event in events:
        match event:
            case TextDelta():
                while len(output.choices) <= event.index:
                    output.choices.append(Choice())
                choice = output.choices[event.index]
                choice.text += event.text
                choice.token_ids += event.token_ids
                choice.finish_reason = event.finish_reason or choice.finish_reason
                choice.logprobs += event.logprobs or ()
                if event.meta:
                    output.segments += event.meta.get("segments", ())
                    output.words += event.meta.get("words", ())
                    output.language = event.meta.get("language") or output.language
            case StepProgress():
                if watcher is not None:
                    watcher(event)
            case MediaChunk(modality="image"):
                if not event.meta.get("preview"):
                    output.images.append(Picture.of(event))
                elif watcher is not None:
                    watcher(event)
            case MediaChunk():
                pcm += event.data
                output.sample_rate = event.meta["sample_rate"]
                output.channels = event.meta.get("channels", 1)
            case Completed():
                output.usage = event.usage
    output.pcm = bytes(pcm)
    output.images.sort(key=lambda picture: picture.index)
    return output
