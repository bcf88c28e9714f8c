"""The step caches of one loaded model's pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from omni_actors.models.diffusion.acceleration.forward_rows import ForwardRows
from omni_actors.models.diffusion.acceleration.step_cache.blocks import CachedBlock
from omni_actors.models.diffusion.acceleration.step_cache.current import Current
from omni_actors.models.diffusion.acceleration.step_cache.forward import BlockLayout, CachedForward, CachedRow
from omni_actors.models.diffusion.acceleration.step_cache.memory import BranchMemory, CursorCache
from omni_actors.models.diffusion.acceleration.step_cache.settings import (
    CacheSettings,
    request_settings,
    stage_settings,
)
from omni_actors.models.diffusion.rows import Row
from omni_actors.worker.engines.diffusion.cursor import Cursor

STATE = "step_cache"
"""Key of a cursor's cache in :attr:`Cursor.state`."""


class StepCache:
    """First-Block and DBCache-like step caches, each of one cursor.

    A forward changes no cursor: :meth:`forward` notes what its rows would remember, and :meth:`commit` takes the note
    into the cursor, when its step is done.

    Args:
        rows: The rows of the forward under way.
        options: The stage's options, with the settings of requests that name none.
    """

    def __init__(self, rows: ForwardRows, options: Mapping[str, Any]) -> None:
        self._rows = rows
        self._usual = stage_settings(options)
        self._current = Current()
        self._layout = BlockLayout()
        self._noted: dict[Cursor, tuple[dict[int, BranchMemory], bool]] = {}
        self.computed_rows = 0
        self.skipped_rows = 0

    @property
    def blocks(self) -> int:
        """The number of the model's blocks; 0 for a model without caches."""
        return self._layout.count

    def install(self, lists: Sequence[nn.ModuleList], layout: BlockLayout) -> None:
        """Put the cache between a model and its blocks, which lie in these lists in order of use.

        Raises:
            OmniError: The stage's own settings are none that the model can follow.
        """
        index = 0
        for blocks in lists:
            for place, block in enumerate(blocks):
                blocks[place] = CachedBlock(block, index, self._current)
                index += 1
        self._layout = layout
        request_settings({}, self._usual, self.blocks)

    def open(self, given: Mapping[str, float]) -> CacheSettings:
        """Return the settings of a request; raise 400 for settings that the model cannot follow."""
        return request_settings(given, self._usual, self.blocks)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run the block of code as the forward of the rows under way."""
        branches = _branches(self._rows.all)
        cached = {}
        for place, row in enumerate(self._rows.all):
            if (found := _cached_row(row, branches[place])) is not None:
                cached[place] = found
        if not cached:
            yield
            return
        under_way = self._current.forward = CachedForward(self._rows, cached, self._layout)
        try:
            yield
        finally:
            self._current.forward = None
        if under_way.memories.keys() != cached.keys():
            raise RuntimeError("the model's forward did not run all of its blocks once")
        self._note(under_way, branches)

    def _note(self, done: CachedForward, branches: Sequence[int]) -> None:
        rows = self._rows.all
        self.skipped_rows += len(done.skipped)
        self.computed_rows += len(done.memories) - len(done.skipped)
        noted: dict[Cursor, tuple[dict[int, BranchMemory], bool]] = {}
        for place, memory in done.memories.items():
            cursor = rows[place].cursor
            memories, skipped = noted.get(cursor, ({}, False))
            memories[branches[place]] = memory
            noted[cursor] = (memories, skipped or place in done.skipped)
        self._noted.update(noted)

    def commit(self, cursor: Cursor) -> None:
        """Take what the last forward noted into a cursor whose step is done."""
        noted = self._noted.pop(cursor, None)
        if noted is None:
            return
        branches, skipped = noted
        cache: CursorCache = cursor.state[STATE]
        cache.branches = {**cache.branches, **branches}
        cursor.skipped += skipped

    def forget(self, cursor: Cursor) -> None:
        """Drop what is held for a cursor."""
        self._noted.pop(cursor, None)
        cursor.state.pop(STATE, None)

    def counters(self) -> dict[str, float]:
        """Return the rows with a cache that were computed in full, and those that skipped blocks."""
        return {
            "step_cache_computed_rows_total": self.computed_rows,
            "step_cache_skipped_rows_total": self.skipped_rows,
        }


def _branches(rows: Sequence[Row]) -> list[int]:
    """Return each row's branch counted from its cursor's last one, which is the positive one however many there are."""
    left: Counter[Cursor] = Counter(row.cursor for row in rows)
    found = []
    for row in rows:
        found.append(-left[row.cursor])
        left[row.cursor] -= 1
    return found


def _cached_row(row: Row, branch: int) -> CachedRow | None:
    cache: CursorCache | None = row.cursor.state.get(STATE)
    if cache is None:
        return None
    settings, memory = cache.settings, cache.branches.get(branch)
    may_skip = row.cursor.step >= settings.warmup
    if memory is not None and settings.max_skips:
        may_skip = may_skip and memory.skips < settings.max_skips
    return CachedRow(settings, memory, may_skip)
