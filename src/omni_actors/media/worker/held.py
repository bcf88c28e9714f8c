"""The things in the media process: bodies, decoded media, encoders, running jobs and deliveries."""

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
    """A body in pieces; ``param`` names its field.

    The pieces are kept separate, because one growing buffer would be copied now and then, for 20 ms at a time.
    """

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
        """Return the body in one buffer, and drop the pieces; ``nbytes`` stays."""
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
    """The media of a parsed body, in order, as base64. ``items`` are views of the body of ``nbytes`` bytes."""

    def __init__(self, items: list[MediaPart], nbytes: int) -> None:
        self.items = items
        self.nbytes = nbytes


@dataclass(slots=True)
class Clip:
    """Sound: float32 [n], mono, at ``rate`` Hz."""

    samples: Float32
    rate: int = CLIP_RATE
    modality: ClassVar[str] = "audio"
    size: ClassVar[tuple[int, int]] = (0, 0)

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
    """An image: uint8 [height, width, 3 or 4], RGB or RGBA."""

    pixels: UInt8
    modality: ClassVar[str] = "image"
    seconds: ClassVar[float] = 0.0
    audio_seconds: ClassVar[float] = 0.0

    @property
    def nbytes(self) -> int:
        return int(self.pixels.nbytes)

    @property
    def size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]

    def payload(self, index: int) -> Payload:
        return Payload("image", {"index": index, "length": len(self.pixels)}, {"pixels": self.pixels})


@dataclass(slots=True)
class Video:
    """A video: frames uint8 [count, height, width, 3] RGB, ``fps`` a second, and the sound if asked for and present."""

    frames: UInt8
    fps: float
    seconds: float
    samples: Float32 | None = None
    modality: ClassVar[str] = "video"

    @property
    def size(self) -> tuple[int, int]:
        return self.frames.shape[2], self.frames.shape[1]

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
    """The memory that a decoder reports for its large buffers, ``nbytes``."""

    def __init__(self, afford: Callable[[int], None]) -> None:
        """Make an empty reserve. ``afford`` raises :class:`OmniError` when there is no room for more bytes."""
        self._afford = afford
        self.nbytes = 0

    def hold(self, nbytes: int) -> None:
        """Set the reserve to ``nbytes`` bytes in all. Call it before the allocation."""
        self._afford(nbytes - self.nbytes)
        self.nbytes = nbytes


@dataclass(slots=True)
class Stream:
    """An open encoder, with the seconds of audio that it has taken."""

    encoder: Encoder
    seconds: float = 0.0
    bytes_per_second: int = 1
    finished: bool = False

    @property
    def nbytes(self) -> int:
        return self.encoder.nbytes


@dataclass(slots=True)
class Job:
    """A running query. ``work`` returns the answer; ``holds`` is the memory of the job.

    A job that is ``left`` has been answered already, and ends with its current uninterruptible call.
    """

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
    """The delivery of a request's media to the next stages. ``pieces`` are the unsent pieces of the first medium."""

    request_id: str
    media: deque[Medium]
    audio_seconds: float
    index: int = 0
    pieces: deque[Payload] = field(default_factory=deque)


class Made:
    """The decoded media of a body so far, and the medium that is being decoded."""

    def __init__(self) -> None:
        self.media: list[Medium] = []
        self.growing: tuple[Sized, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(medium.nbytes for medium in self.media) + sum(held.nbytes for held in self.growing)
