"""The rows of the forward under way, for the parts inside a model that treat rows differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from omni_actors.models.diffusion.rows import Row


class ForwardRows:
    """The rows of the forward under way: a row is one picture's guidance branch.

    The adapter's thread sets the rows around each forward. Inside, a step cache lets rows leave the forward and come
    back: :attr:`present` says which rows the model's tensors hold now, along their first dimension.
    """

    def __init__(self) -> None:
        self.all: Sequence[Row] = ()
        """The rows of the forward; empty outside of one."""
        self.present: tuple[int, ...] = ()
        """Places in :attr:`all`, in order, of the rows that the tensors hold now."""

    @contextmanager
    def under_way(self, rows: Sequence[Row]) -> Iterator[None]:
        """Run the block as the forward of these rows."""
        self.all, self.present = rows, tuple(range(len(rows)))
        try:
            yield
        finally:
            self.all, self.present = (), ()
