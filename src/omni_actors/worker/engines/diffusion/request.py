"""A request inside the diffusion engine: its cursors, and what it has produced."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor


@dataclass(eq=False, slots=True)
class PictureRequest:
    """One request with a cursor for each of its pictures."""

    work: Work
    cursors: list[Cursor]
    open_ports: set[str]
    leaving: deque[Payload] = field(default_factory=deque)
    """Payloads that wait for a credit."""
    usage: Usage = field(default_factory=Usage)

    @property
    def drained(self) -> bool:
        """Whether every picture is done and has left, and no input follows."""
        return not self.leaving and not self.open_ports and all(cursor.over for cursor in self.cursors)

    def count(self, *, images: int = 0, steps: int = 0, skipped: int = 0) -> None:
        """Add to the request's usage."""
        usage = self.usage
        usage.images += images
        usage.steps += steps
        usage.skipped_steps += skipped
