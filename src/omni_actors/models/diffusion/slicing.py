"""Work on several pictures in slices of one picture each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from omni_actors.worker.engines.diffusion.cursor import Cursor


def one_by_one(cursors: Sequence[Cursor], compute: Callable[[Cursor], Any]) -> Iterator[Sequence[Any] | None]:
    """Compute a result for each cursor, one cursor in each slice, without gradients.

    Args:
        cursors: The pictures of an encoding or decoding.
        compute: The function that returns the result for a cursor, and changes no cursor.

    Yields:
        ``None`` after each slice but the last, and all results after the last one, as
        :class:`~omni_actors.worker.engines.diffusion.adapter.DiffusionAdapter` expects.
    """
    made: list[Any] = []
    for cursor in cursors:
        with torch.inference_mode():
            made.append(compute(cursor))
        yield None if len(made) < len(cursors) else made


def last_of(slices: Iterator[Sequence[Any] | None]) -> Sequence[Any]:
    """Run every slice at once, and return the results."""
    return [found for found in slices if found is not None][-1]
