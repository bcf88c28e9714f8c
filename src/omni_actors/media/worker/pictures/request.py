"""The pictures of requests inside the engine of the stage ``pictures``."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from omni_actors.media.worker.pictures.formats import Manner
from omni_actors.media.worker.pictures.png import UInt8
from omni_actors.media.worker.pictures.threads import Call


class File:
    """An encoded picture, which is taken in pieces."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = deque(parts)
        self.nbytes = sum(map(len, parts))

    def take(self, most: int) -> bytes:
        """Return the next bytes, at most so many."""
        found, size = [], 0
        while self._parts and size < most:
            part = self._parts.popleft()
            if (over := size + len(part) - most) > 0:
                self._parts.appendleft(part[-over:])
                part = part[:-over]
            found.append(part)
            size += len(part)
        self.nbytes -= size
        return found[0] if len(found) == 1 else b"".join(found)


@dataclass(eq=False, slots=True)
class Picture:
    """A picture, or a preview of one, from its arrival until its file is sent.

    ``meta`` is for the client. ``nbytes`` is the memory that the picture takes here; pixels of a finished picture stay
    in the memory of the stage that made them, until :attr:`encoded`.
    """

    request: PictureRequest
    meta: dict[str, Any]
    pixels: UInt8 | None
    nbytes: int
    slices: Generator[int, None, list[bytes]] | None = None
    call: Call | None = None
    remaining: int = 0
    """Rows × width that are not written yet, while :attr:`slices` run."""
    encoded: bool = False
    file: File | None = None
    pieces: int = 0
    sent: int = 0

    @property
    def index(self) -> int:
        """The picture's place among the pictures of its request."""
        return int(self.meta["index"])

    @property
    def preview(self) -> bool:
        """Whether this is a preview."""
        return "preview" in self.meta

    def drop(self) -> None:
        """End all work for the picture. A call in a thread may run on for a while; :attr:`call` stays."""
        if self.slices is not None:
            self.slices.close()
            self.slices = None
        if self.call is not None:
            self.call.stop()
        self.pixels = self.file = None


@dataclass(eq=False, slots=True)
class PictureRequest:
    """A request: its pictures under way, and what has arrived."""

    key: int
    request_id: str
    manner: Manner
    queued: deque[Picture] = field(default_factory=deque)
    """Finished pictures whose payloads are not consumed, in order of arrival."""
    previews: dict[int, Picture] = field(default_factory=dict)
    """The newest preview of each picture that waits for its turn, by index."""
    live: set[Picture] = field(default_factory=set)
    """All pictures and previews that are not sent, beside :attr:`previews`."""
    whole: set[int] = field(default_factory=set)
    """Indexes of the finished pictures that have arrived."""
    ended: bool = False

    @property
    def over(self) -> bool:
        """Whether all has arrived and is sent."""
        return self.ended and not self.live and not self.previews
