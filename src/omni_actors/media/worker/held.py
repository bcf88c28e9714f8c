"""The things that the media process holds: bodies, decoded media, encoders, questions and deliveries under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from omni_actors.connectors.payload import Payload, pcm_payload
from omni_actors.media.limits import CLIP_RATE
from omni_actors.media.worker.bodies import MediaPart
from omni_actors.media.worker.encode import Encoder
from omni_actors.media.worker.mixing import Float32
from omni_actors.media.worker.tables import Sized

UInt8 = npt.NDArray[np.uint8]


class Blob:
    """A body that comes in pieces; ``param`` names the field that it is. A piece is kept as it came: one buffer that
    grows would be copied now and then, 20 ms at a time."""

    def __init__(self, param: str | None = None, data: bytes = b"") -> None:
        self.param = param
        self.nbytes = 0
        self.pieces: list[bytes] = []
        if data:
            self.write(data)

    def write(self, data: bytes) -> None:
        self.nbytes += len(data)
        self.pieces.append(data)

    def join(self) -> Generator[None, None, bytearray]:
        """The body in one buffer, emptying this (``nbytes`` stays what it was)."""
        whole = bytearray(self.nbytes)
        at = 0
        for number, piece in enumerate(self.pieces):
            whole[at : at + len(piece)] = piece
            at += len(piece)
            self.pieces[number] = b""
            yield
        self.pieces.clear()
        return whole


class Parts:
    """The media of a parsed body, in order, as base64: ``items`` are views of the body, which has ``nbytes``."""

    def __init__(self, items: list[MediaPart], nbytes: int) -> None:
        self.items = items
        self.nbytes = nbytes


@dataclass(slots=True)
class Clip:
    """Sound: float32 [n], mono, at ``rate`` Hz."""

    samples: Float32
    rate: int = CLIP_RATE
    modality: ClassVar[str] = "audio"

    @property
    def nbytes(self) -> int:
        return int(self.samples.nbytes)

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    @property
    def audio_seconds(self) -> float:
        return self.seconds

    def payload(self, index: int) -> Payload:
        return pcm_payload(self.samples, self.rate, index=index, seconds=self.seconds, length=len(self.samples))


@dataclass(slots=True)
class Picture:
    """An image: uint8 [height, width, 3], RGB."""

    pixels: UInt8
    modality: ClassVar[str] = "image"
    seconds: ClassVar[float] = 0.0
    audio_seconds: ClassVar[float] = 0.0

    @property
    def nbytes(self) -> int:
        return int(self.pixels.nbytes)

    def payload(self, index: int) -> Payload:
        return Payload("image", {"index": index, "length": len(self.pixels)}, {"pixels": self.pixels})


@dataclass(slots=True)
class Video:
    """Frames uint8 [count, height, width, 3] RGB, ``fps`` of them a second; its sound as a clip's if it was asked for
    and there is any."""

    frames: UInt8
    fps: float
    seconds: float
    samples: Float32 | None = None
    modality: ClassVar[str] = "video"

    @property
    def nbytes(self) -> int:
        return int(self.frames.nbytes) + (0 if self.samples is None else int(self.samples.nbytes))

    @property
    def audio_seconds(self) -> float:
        return 0.0 if self.samples is None else len(self.samples) / CLIP_RATE

    def payload(self, index: int) -> Payload:
        meta = {"index": index, "fps": self.fps, "seconds": self.seconds, "length": len(self.frames)}
        if self.samples is None:
            return Payload("video", meta, {"frames": self.frames})
        meta |= {"sample_rate": CLIP_RATE, "audio_length": len(self.samples)}
        return Payload("video", meta, {"frames": self.frames, "samples": self.samples})


Medium = Clip | Picture | Video


class Reserve:
    """What a decoder holds in large pieces: ``nbytes``, by its own word."""

    def __init__(self, afford: Callable[[int], None]) -> None:
        """``afford`` raises :class:`OmniError` when there is no room for so many more bytes."""
        self._afford = afford
        self.nbytes = 0

    def hold(self, nbytes: int) -> None:
        """From now on hold so many bytes in all; ask before they are allocated."""
        self._afford(nbytes - self.nbytes)
        self.nbytes = nbytes


@dataclass(slots=True)
class Stream:
    encoder: Encoder
    seconds: float = 0.0
    bytes_per_second: int = 1
    finished: bool = False

    @property
    def nbytes(self) -> int:
        return self.encoder.nbytes


@dataclass(slots=True)
class Job:
    """A question under way. ``work`` returns its answer; ``holds`` is what it keeps in memory meanwhile. One that is
    ``left`` has been answered already, and ends as soon as a call that cannot be interrupted does."""

    question: int
    owner: str
    work: Generator[None, None, Any]
    holds: tuple[Sized, ...]
    left: bool = False

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self.holds)


@dataclass(slots=True)
class Delivery:
    """A request's media on their way to the stages that its edges lead to. ``pieces`` are those of the first one that
    are not sent yet."""

    request_id: str
    media: deque[Medium]
    audio_seconds: float
    index: int = 0
    pieces: deque[Payload] = field(default_factory=deque)


class Made:
    """The media that the decoding of a body has made so far, and the one that it is at."""

    def __init__(self) -> None:
        self.media: list[Medium] = []
        self.growing: tuple[Sized, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(medium.nbytes for medium in self.media) + sum(held.nbytes for held in self.growing)
