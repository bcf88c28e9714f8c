"""The diffusion engine: every picture is a cursor, and a step is one forward over the cursors that can share it.

A cursor owns its latents, its scheduler, its draws, its conditioning and its caches. Cursors join, leave and pause
between steps: whatever their number of steps, their guidance or the length of their prompts, cursors whose next steps
have equal keys share a forward. One unit of work is a forward, or one slice of an encoding or decoding
(:mod:`~.turns` chooses it), so a request that is over costs no more than the unit that runs.

A batch that raises is run again in parts, until the requests that fail alone are known (see
:mod:`omni_actors.worker.isolation`). For that a forward changes no cursor: predictions are taken into the cursors once
the whole batch has been computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError, overloaded
from omni_actors.protocol.frames import Hello, Query
from omni_actors.protocol.limits import MAX_REQUESTS
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.checks import InputError, check_input
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE, DiffusionAdapter
from omni_actors.worker.engines.diffusion.cohort import Cohort
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.denoise import Denoiser
from omni_actors.worker.engines.diffusion.fairness import Fairness
from omni_actors.worker.engines.diffusion.memory import MemoryBudget, usable_bytes
from omni_actors.worker.engines.diffusion.options import OPTIONS
from omni_actors.worker.engines.diffusion.plain import check_plain_request, check_plain_stage
from omni_actors.worker.engines.diffusion.request import PictureRequest
from omni_actors.worker.engines.diffusion.slices import SliceRunner
from omni_actors.worker.engines.diffusion.table import PictureTable
from omni_actors.worker.engines.diffusion.turns import Turns, Unit
from omni_actors.worker.isolation import BatchLimit, Faults
from omni_actors.worker.named import class_named
from omni_actors.worker.returned import counters_of, facts_of, sequence_of, wrong

RESTORED = ("conditioning", "latent")
"""Kinds of payloads by which a stage goes on where another stage stopped."""


class DiffusionEngine(Engine):
    """The diffusion engine, which drives the :class:`~.adapter.DiffusionAdapter` named by ``hello.adapter``.

    Args:
        hello: The stage, with its options.
        clock: The time in seconds, for turns and deadlines.
    """

    def __init__(self, hello: Hello, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(hello)
        self._clock = clock
        self.max_requests = hello.limits.get("max_requests", MAX_REQUESTS.default)
        self._options = filled(OPTIONS, hello.options)
        self._faults = Faults(hello)
        self._adapter: DiffusionAdapter
        self._table: PictureTable
        self._runner: SliceRunner
        self._denoiser: Denoiser
        self._turns: Turns

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        adapter: DiffusionAdapter = class_named(self.hello.adapter, DiffusionAdapter, "adapter")(self.hello)
        if not adapter.accelerated:
            check_plain_stage(self._options)
        adapter.compiling = lambda: self.compiling()
        facts = facts_of(adapter, adapter.load(progress))
        self.attach(adapter)
        return facts

    def attach(self, adapter: DiffusionAdapter) -> None:
        """Take a loaded adapter."""
        options = self._options
        total = options["memory_bytes"]
        memory = MemoryBudget(usable_bytes(self._faults.runtime.memory()) if total is None else total)
        memory.reserve(adapter.reserved_bytes())
        fairness, limit = Fairness(self._clock), BatchLimit(options["max_rows"])
        self._adapter = adapter
        self._table = PictureTable(adapter, self._faults, fairness, memory)
        self._runner = SliceRunner(self._table)
        self._denoiser = Denoiser(self._table, limit, options["preview_side"])
        cohort = None if options["join"] else Cohort(fairness, options["max_rows"])
        self._turns = Turns(self._table, self._runner, limit, cohort)

    # ---- requests

    def admit(self, work: Work) -> None:
        table = self._table
        if len(table.requests) >= self.max_requests:
            raise overloaded(f"Stage '{self.hello.stage}' holds {self.max_requests} requests already.")
        cursors: list[Cursor] = []
        try:
            cursors = self._opened(work)
            for cursor in cursors:
                table.memory.check(cursor.footprint, f"A picture of {cursor.width}x{cursor.height} pixels")
        except Exception as error:
            table.close(cursors)
            table.totals["failures"] += 1
            raise OmniError(self._faults.explain(error, work.request_id)) from error
        request = PictureRequest(work, cursors, set(work.ports))
        table.enter(request)
        if not request.open_ports:
            table.begin(request, cursors)

    def _opened(self, work: Work) -> list[Cursor]:
        image = work.params.get("image") or ImageGeneration()
        if not self._adapter.accelerated:
            check_plain_request(image)
        opened = sequence_of(self._adapter, "open", self._adapter.open(work, image), "a sequence of Cursor")
        if not opened or not all(isinstance(cursor, Cursor) for cursor in opened):
            raise wrong(self._adapter, "open", f"a sequence of {len(opened)} items", "a Cursor for each picture")
        return list(opened)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._table.requests.get(key)
        if request is None:
            return True
        try:
            if port not in request.open_ports:
                raise RuntimeError(f"port {port!r} is not open")
            self._take(request, port, payload, end)
        except InputError:
            self._table.give_up(request)
            raise
        except Exception as error:
            self._table.give_up(request)
            raise OmniError(self._faults.explain(error, request.work.request_id)) from error
        return True

    def _take(self, request: PictureRequest, port: str, payload: Payload | None, end: bool) -> None:
        table, adapter = self._table, self._adapter
        if payload is not None:
            check_input(payload, adapter.tensors.get(payload.kind, {}))
        adapter.feed(request.cursors, port, payload, end)
        if end:
            request.open_ports.discard(port)
        waiting = [cursor for cursor in request.cursors if cursor.phase is Phase.INPUT]
        if ENCODE in adapter.parts:
            if not request.open_ports:
                table.begin(request, waiting)
            return
        # A picture goes on as soon as its own payload is here: the other ones may still be denoised elsewhere.
        for cursor in waiting:
            for kept in (it for given in cursor.inputs.values() for it in given if _is_for(it, cursor)):
                if request.open_ports <= {port}:
                    cursor.restoring = kept
                    table.begin(request, [cursor])
                    break
            else:
                if not request.open_ports:
                    raise InputError(f"port '{port}' has ended without picture {cursor.index}")
        table.drained(request)

    def abort(self, key: int) -> None:
        request = self._table.requests.get(key)
        if request is not None:
            self._table.totals["aborted"] += 1
            self._table.remove(request)

    # ---- one unit of work

    @property
    def runnable(self) -> bool:
        return self._table.runnable

    def step(self, out: Outbox) -> bool:
        moved = self._table.flush(out)
        count = len(self._table.requests)
        unit = self._turns.next(out)
        if unit is None:
            return moved or len(self._table.requests) < count
        begin = self._clock()
        done = self._run(unit, out)
        self._account(unit, self._clock() - begin, done)
        return True

    def _run(self, unit: Unit, out: Outbox) -> bool:
        """Do a unit of work. Return whether it completed what it is a part of."""
        if unit.slices is not None:
            return self._runner.run(unit.slices, out)
        self._denoiser.run(unit.cursors, out)
        self._turns.changed(unit.cursors)
        return True

    def _account(self, unit: Unit, seconds: float, done: bool) -> None:
        fairness = self._table.fairness
        fairness.worked(unit.cursors, unit.waiting, seconds)
        if unit.slices is not None:
            unit.slices.seconds += seconds
            if done:
                fairness.measured(unit.slices.phase, unit.slices.cursors, unit.slices.seconds)
        else:
            fairness.measured(Phase.DENOISE, unit.cursors, seconds)

    # ---- the rest

    def query(self, query: Query, out: Outbox) -> None:
        answer = self._adapter.query(query.what, query.args)
        self._table.memory.reserve(self._adapter.reserved_bytes())
        out.reply(query.id, answer)

    def counters(self) -> dict[str, float]:
        """Return gauges (``requests``, ``cursors``, ``memory_bytes``) and counters with names in ``_total``."""
        table = self._table
        return {
            "requests": len(table.requests),
            "cursors": sum(len(request.cursors) for request in table.requests.values()),
            "memory_bytes": table.memory.held,
            **{f"{name}_total": count for name, count in table.totals.items()},
            **counters_of(self._adapter, self._adapter.counters()),
        }

    def close(self) -> None:
        for request in list(self._table.requests.values()):
            self._table.remove(request)
        self._runner.close()


def _is_for(payload: Payload, cursor: Cursor) -> bool:
    """Return whether another stage's payload is a picture's: conditioning is for all pictures of a request."""
    if payload.kind not in RESTORED:
        return False
    return payload.kind == "conditioning" or payload.meta.get("index") == cursor.index
