"""The tables of the things that the media process holds for its clients between two queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omni_actors.media.limits import Limits
from omni_actors.media.worker.held import Blob, Medium, Parts, Stream
from omni_actors.media.worker.tables import Table


class Holdings:
    """All tables of the media process.

    ``blobs`` are incoming bodies, ``bodies`` the media of parsed bodies, ``clips`` decoded media that wait for their
    requests, ``lent`` the media of running requests, ``streams`` open encoders. ``ids`` numbers all entries; ``clock``
    gives the time of idle deadlines in seconds.
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
        """Whether no client can come back for an entry. (Lent media are kept for retries only, and do not count.)"""
        return not any(len(table) for table in self._owned)

    @property
    def nbytes(self) -> int:
        """The bytes of all entries but lent media, which a running request may hold as well."""
        return sum(table.nbytes for table in self._owned)

    def lend(self, number: int) -> Medium:
        """Lend a medium to a request. The medium stays for another attempt of the request."""
        held = (self.lent if number in self.lent else self.clips).pop(number)
        self.lent.add(held.owner, held.item, number)
        if len(self.lent) > self._limits.max_clips:
            self.lent.evict()
        return held.item

    def discard(self, owners: frozenset[str], clips: Iterable[int]) -> None:
        """Free all entries of the owners, and the given media."""
        for table in self._owned:
            table.drop_owners(owners)
        for clip in clips:
            self.clips.drop(clip)
            self.lent.drop(clip)

    def expire(self) -> int:
        """Free the entries that were unused for the idle time; return how many of them were not lent."""
        self.lent.expire()
        return sum(table.expire() for table in self._owned)

    def due_s(self) -> float | None:
        """Return the seconds until the next entry expires; ``None`` without entries."""
        return min((due for table in (*self._owned, self.lent) if (due := table.due_s()) is not None), default=None)

    def counters(self) -> dict[str, float]:
        return {
            "blobs": len(self.blobs) + len(self.bodies),
            "clips": len(self.clips),
            "clips_lent": len(self.lent),
            "streams": len(self.streams),
        }
