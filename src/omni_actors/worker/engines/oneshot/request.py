"""A request in the one-shot engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.outputs import Piece

END = object()
"""The value of an ended iterator of pieces."""


@dataclass(slots=True)
class QueuedItem:
    """An item that waits for a batch."""

    item: Any
    batch_key: Hashable
    port: str | None = None  # set on a payload's last item: once that starts, the payload's credit goes back
    alone: bool = False  # it was in a batch that raised


@dataclass(slots=True)
class OneShotRequest:
    """A request in the engine: its waiting items, and its leaving pieces of output."""

    work: Work
    state: Any
    open_ports: set[str]
    items: deque[QueuedItem] = field(default_factory=deque)
    ready: deque[Piece] = field(default_factory=deque)  # finished pieces of the item that is leaving
    lazy: Iterator[Piece] | None = None  # or where its next one comes from
    finishing: bool = False
    usage: Usage = field(default_factory=Usage)

    @property
    def leaving(self) -> bool:
        return bool(self.ready) or self.lazy is not None

    @property
    def drained(self) -> bool:
        return not self.open_ports and not self.items and not self.leaving

    def start(self, pieces: Iterable[Piece]) -> None:
        """Let the pieces of a completed item leave next."""
        if isinstance(pieces, Sequence):
            self.ready.extend(pieces)
        else:
            self.lazy = iter(pieces)
