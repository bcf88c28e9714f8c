"""The tables of what the media process holds for its clients between two questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omni_actors.media.limits import Limits
from omni_actors.media.worker.held import Blob, Medium, Parts, Stream
from omni_actors.media.worker.tables import Table


class Holdings:
    """``blobs`` are bodies as they come, ``bodies`` the media of parsed ones, ``clips`` decoded media that wait for
    their request, ``lent`` those of running requests, ``streams`` open encoders.

    ``ids`` numbers them all; ``clock`` gives the time of their idle deadlines in seconds.
    """

    def __init__(self, limits: Limits, ids: Iterator[int], clock: Callable[[], float]) -> None:
        idle = limits.idle_s
        self.blobs: Table[Blob] = Table("body", limits.max_blobs, idle, ids, clock)
        self.bodies: Table[Parts] = Table("parsed body", limits.max_blobs, idle, ids, clock)
        self.clips: Table[Medium] = Table("decoded file", limits.max_clips, idle, ids, clock)
        self.lent: Table[Medium] = Table("decoded file", limits.max_clips, idle, ids, clock)
        self.streams: Table[Stream] = Table("encoder", limits.max_streams, idle, ids, clock)
        self._limits = limits
        self._owned: tuple[Table[Any], ...] = (self.blobs, self.bodies, self.clips, self.streams)

    @property
    def empty(self) -> bool:
        """Whether nothing is held for a client that may come back for it. (What is lent is kept for retries alone.)"""
        return not any(len(table) for table in self._owned)

    @property
    def nbytes(self) -> int:
        """Without what is lent: a running request may hold that as well."""
        return sum(table.nbytes for table in self._owned)

    def lend(self, number: int) -> Medium:
        """A medium that a request begins to use. It stays for another attempt of that request."""
        held = (self.lent if number in self.lent else self.clips).pop(number)
        self.lent.add(held.owner, held.item, number)
        if len(self.lent) > self._limits.max_clips:
            self.lent.evict()
        return held.item

    def discard(self, owners: frozenset[str], clips: Iterable[int]) -> None:
        """Free what these owners have, and these media."""
        for table in self._owned:
            table.drop_owners(owners)
        for clip in clips:
            self.clips.drop(clip)
            self.lent.drop(clip)

    def expire(self) -> int:
        """Free what nobody has touched for the idle time; how many of them were not lent."""
        self.lent.expire()
        return sum(table.expire() for table in self._owned)

    def due_s(self) -> float | None:
        """Seconds until the next thing is to be freed; ``None`` when nothing is held."""
        return min((due for table in (*self._owned, self.lent) if (due := table.due_s()) is not None), default=None)

    def counters(self) -> dict[str, float]:
        return {
            "blobs": len(self.blobs) + len(self.bodies),
            "clips": len(self.clips),
            "clips_lent": len(self.lent),
            "streams": len(self.streams),
        }
