"""The choice of the next unit of work: which pictures, and which of them together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.diffusion.cohort import Cohort
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.slices import SliceRunner, Slices
from omni_actors.worker.engines.diffusion.table import PictureTable
from omni_actors.worker.isolation import BatchLimit
from omni_actors.worker.returned import kind_of, wrong


@dataclass(slots=True)
class Unit:
    """A unit of work: one forward over ``cursors``, or one slice of an encoding or decoding.

    ``waiting`` are the pictures that could have worked instead.
    """

    cursors: list[Cursor]
    slices: Slices | None = None
    waiting: list[Cursor] = field(default_factory=list)


class Turns:
    """The choice of the next unit of work.

    The most urgent picture has the next unit, and those with equal keys share it, as far as rows and memory go.
    Newcomers are encoded between two forwards, one slice at a time, so that they soon share forwards with the others.

    Args:
        table: The pictures.
        runner: The encodings and decodings under way.
        limit: The rows of a forward.
        cohort: The pictures that may work when joining is off; ``None`` when it is on.
    """

    def __init__(self, table: PictureTable, runner: SliceRunner, limit: BatchLimit, cohort: Cohort | None) -> None:
        self._table = table
        self._runner = runner
        self._limit = limit
        self._cohort = cohort
        self._steps: dict[Cursor, tuple[Hashable, int]] = {}
        self._newcomer_is_next = False
        self._last: list[Cursor] = []
        """The pictures of the last forward, in order, if nobody else waited."""
        table.forget.append(self.changed)

    def changed(self, cursors: Sequence[Cursor]) -> None:
        """Ask for the keys of these cursors again."""
        for cursor in cursors:
            self._steps.pop(cursor, None)

    def next(self, out: Outbox) -> Unit | None:
        """Return the next unit of work; ``None`` if no picture can work now. A picture whose key or begin fails, fails
        alone."""
        order = self._order(out)
        admitted = self._admitted(order, out)
        heads = admitted
        if heads and heads[0].phase is Phase.DENOISE and self._newcomer_is_next:
            urgent = self._table.fairness.priority(heads[0])
            encodes = [it for it in heads if it.phase is Phase.ENCODE]
            heads = [it for it in encodes[:1] if self._table.fairness.priority(it) <= urgent] + heads
        for head in heads:
            unit = None if head.over else self._unit(head, admitted, out)
            if unit is not None:
                shared = set(unit.cursors)
                unit.waiting = [it for it in order if it not in shared and not it.over]
                self._newcomer_is_next = unit.slices is None or unit.slices.phase is Phase.DECODE
                self._last = [] if unit.waiting or unit.slices is not None else unit.cursors
                return unit
        return None

    def _order(self, out: Outbox) -> list[Cursor]:
        """Return the cursors that can work now, the most urgent first."""
        table, under_way = self._table, self._runner.under_way
        if self._last and len(self._last) == len(table.active) and all(map(self._goes_on, self._last)):
            return self._last  # all of them take the same steps: the order of the last one holds
        found = [
            cursor
            for cursor in table.active
            if cursor.phase is not Phase.DECODE or under_way(cursor) is not None or self._may_leave(cursor, out)
        ]
        if self._cohort is None:
            return table.fairness.order(found)
        able = set(found)
        return [it for it in self._cohort.of(table.active, table.requests) if it in able]

    def _goes_on(self, cursor: Cursor) -> bool:
        return cursor.phase is Phase.DENOISE and cursor in self._table.active

    def _may_leave(self, cursor: Cursor, out: Outbox) -> bool:
        return not self._table.requests[cursor.key].leaving and out.ready(cursor.key)

    def _admitted(self, order: Sequence[Cursor], out: Outbox) -> list[Cursor]:
        """Return the cursors that memory admits, and whose next step is known."""
        table, found, full = self._table, [], False
        for cursor in order:
            if cursor.over:  # another picture of the request has just failed
                continue
            if not table.memory.admitted(cursor) and (full or not table.memory.admit(cursor)):
                # A starving picture that waits for memory gets what is given back: nobody may pass it.
                full |= table.fairness.starving(cursor)
                continue
            if self._begun(cursor, out):
                found.append(cursor)
        return [cursor for cursor in found if not cursor.over]

    def _begun(self, cursor: Cursor, out: Outbox) -> bool:
        """Prepare an admitted cursor for its next unit of work; return whether that succeeded."""
        if cursor.restoring is None and (cursor.phase is not Phase.DENOISE or cursor in self._steps):
            return True
        adapter = self._table.adapter
        try:
            if cursor.restoring is not None:
                adapter.restore(cursor, cursor.restoring)
                cursor.restoring = None
                cursor.inputs = {}
            if cursor.phase is Phase.DENOISE:
                if not cursor.begun:
                    adapter.begin(cursor)
                    cursor.begun = True
                    self._table.succeeded("begin")
                self._steps[cursor] = step = self._step_of(cursor)
                if self._cohort is not None:
                    self._cohort.learn(cursor, step[1])
        except Exception as error:
            self._table.fail(self._table.requests[cursor.key], error, out)
            self._table.suspect("begin", error)
            return False
        return True

    def _step_of(self, cursor: Cursor) -> tuple[Hashable, int]:
        """Return the key and the rows of a cursor's next step."""
        adapter = self._table.adapter
        key, rows = adapter.batch_key(cursor), adapter.rows(cursor)
        try:
            hash(key)
        except TypeError:
            raise wrong(adapter, "batch_key", kind_of(key), "a hashable value") from None
        if type(rows) is not int or rows < 1:
            raise wrong(adapter, "rows", kind_of(rows), "a whole number above 0")
        return key, rows

    def _unit(self, head: Cursor, admitted: Sequence[Cursor], out: Outbox) -> Unit | None:
        slices = self._runner.under_way(head)
        if slices is not None:
            return Unit([it for it in slices.cursors if not it.over], slices)
        batch = self._forward(head, admitted) if head.phase is Phase.DENOISE else self._shared(head, admitted, out)
        batch = self._table.memory.fitting(batch, head.phase)
        if not batch:
            return None
        return Unit(batch, None if head.phase is Phase.DENOISE else Slices(head.phase, batch))

    def _forward(self, head: Cursor, admitted: Sequence[Cursor]) -> list[Cursor]:
        key, rows = self._steps[head]
        batch = [head]
        for cursor in admitted:
            if cursor is head or cursor.phase is not Phase.DENOISE:
                continue
            its_key, its_rows = self._steps[cursor]
            if its_key == key and rows + its_rows <= self._limit.now:
                rows += its_rows
                batch.append(cursor)
        return batch

    def _shared(self, head: Cursor, admitted: Sequence[Cursor], out: Outbox) -> list[Cursor]:
        """Return the head of an encoding or decoding, and those that share it."""
        runner = self._runner
        if runner.alone(head):
            return [head]
        others = [
            it
            for it in admitted
            if it is not head and it.phase is head.phase and not runner.alone(it) and runner.under_way(it) is None
        ]
        batch: list[Cursor] = []
        first: Hashable = None
        for cursor in (head, *others):
            if len(batch) >= self._limit.now:
                break
            try:
                key = self._key(cursor)
                same = not batch or bool(key == first)
            except Exception as error:
                self._table.fail(self._table.requests[cursor.key], error, out)
                if not batch:
                    return []
                continue
            if same:
                first = key
                batch.append(cursor)
        return [it for it in batch if not it.over]

    def _key(self, cursor: Cursor) -> Hashable:
        adapter = self._table.adapter
        return adapter.encode_key(cursor) if cursor.phase is Phase.ENCODE else adapter.decode_key(cursor)
