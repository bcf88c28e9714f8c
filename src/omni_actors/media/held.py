"""The things that the media process holds: bodies, clips, encoders, questions and deliveries under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from omni_actors.media.audio import Float32
from omni_actors.media.encode import Encoder
from omni_actors.media.limits import CLIP_RATE
from omni_actors.media.tables import Sized


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


@dataclass(slots=True)
class Clip:
    samples: Float32

    @property
    def nbytes(self) -> int:
        return int(self.samples.nbytes)

    @property
    def seconds(self) -> float:
        return len(self.samples) / CLIP_RATE


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
    """A question under way. ``work`` returns its answer; ``holds`` is what it keeps in memory meanwhile."""

    question: int
    owner: str
    work: Generator[None, None, Any]
    holds: tuple[Sized, ...]

    @property
    def nbytes(self) -> int:
        return sum(held.nbytes for held in self.holds)


@dataclass(slots=True)
class Delivery:
    """A request's clips on their way to the stages that its edges lead to."""

    clips: deque[Clip]
    seconds: float
    index: int = 0
    at: int = 0
    """Samples of the first clip that are sent."""

    @property
    def nbytes(self) -> int:
        return sum(clip.nbytes for clip in self.clips)


class Clips:
    """What a body's parsing has made so far and is making."""

    def __init__(self) -> None:
        self.made: list[Clip] = []
        self.growing: tuple[Sized, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(clip.nbytes for clip in self.made) + sum(held.nbytes for held in self.growing)
