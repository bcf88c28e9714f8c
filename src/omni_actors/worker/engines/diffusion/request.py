"""A request inside the diffusion engine: its cursors, and what it has produced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase


@dataclass(eq=False, slots=True)
class PictureRequest:
    """One request with a cursor for each of its pictures."""

    work: Work
    cursors: list[Cursor]
    open_ports: set[str]
    arrival: int
    """The request's place in the order of arrival."""
    usage: Usage = field(default_factory=Usage)

    @property
    def over(self) -> bool:
        """Whether every picture is done."""
        return all(cursor.phase is Phase.DONE for cursor in self.cursors)

    def count(self, *, images: int = 0, steps: int = 0, skipped: int = 0) -> None:
        """Add to the request's usage."""
        usage = self.usage
        usage.images += images
        usage.steps += steps
        usage.skipped_steps += skipped


def live(cursors: Sequence[Cursor], requests: dict[int, PictureRequest]) -> list[Cursor]:
    """Return the cursors whose requests are not over."""
    return [cursor for cursor in cursors if cursor.key in requests]
