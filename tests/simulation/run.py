"""Running one schedule: the deployment, its clients and its faults, and what has to hold at the end."""

from __future__ import annotations

import gc
import logging
import math
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import trio
import trio.testing

from omni_actors.actors.errors import ProcessDied
from omni_actors.orchestrator import Orchestrator, StartupError, open_orchestrator
from omni_actors.protocol.errors import OmniError
from omni_actors.stages.replica import StageReplica

from .clients import Outcome, client, judge
from .deployments import plan_of
from .launcher import open_sim_launcher
from .leftovers import leftovers, sizes
from .schedule import SHAPES, STAGES, Fault, Load, Schedule
from .world import WORLD, World

PATIENCE_S = 2000.0
"""Virtual seconds that a run may take: each request's deadline, and what follows on it."""

SETTLE_S = 120.0
"""Virtual seconds after the last client until nothing of it is left, and all workers are back."""

FROZEN_S = 40.0

FEEDS = 3
"""Pieces of streaming input under way, instead of the usual number."""

AT_START = frozenset({"no_start", "no_load", "no_ready", "kill_loading"})

log = logging.getLogger("omni_actors")


@dataclass(frozen=True, slots=True)
class Report:
    """What one run found. ``hits`` counts the kinds of fault that took effect."""

    violations: list[str]
    hits: dict[str, int]
    trace: list[str]
    virtual_s: float


def _clock() -> trio.testing.MockClock:
    """Jumps to the next deadline when all sleep. When there is none, they sleep for ever."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    jump = clock._autojump

    def jump_or_raise() -> None:
        if trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf:
            raise Deadlock
        jump()

    clock._autojump = jump_or_raise  # type: ignore[method-assign]
    return clock


class Deadlock(Exception):
    """Everybody waits, and nobody for a deadline."""


def run(schedule: Schedule, *, tracing: bool = False) -> Report:
    """Run a schedule. The same one gives the same run."""
    world = World(schedule, tracing)
    WORLD.set(world)
    before = _descriptors()
    elapsed = 0.0

    async def main() -> None:
        nonlocal elapsed
        begun = trio.current_time()
        with trio.move_on_after(PATIENCE_S) as scope:
            await _run(world)
        if scope.cancelled_caught:
            world.violate(f"it hangs: {world.where()}")
        elapsed = trio.current_time() - begun

    with _substituted(world):
        try:
            trio.run(main, clock=_clock(), strict_exception_groups=True)
        except trio.TrioInternalError as error:
            if not isinstance(error.__cause__, Deadlock):
                raise
            world.violate(f"it hangs for ever: {world.where()}")
        except Exception as error:
            world.violate(f"it fails: {error!r}")
            if tracing:
                raise
    world.forget()
    if _descriptors() != before:
        gc.collect()  # a mapping has a descriptor of its own, and may be part of a cycle
        if (after := _descriptors()) > before:
            world.violate(f"{after - before} descriptors are left")
    return Report(world.violations, dict(world.hits), world.trace, elapsed)


async def _run(world: World) -> None:
    schedule = world.schedule
    outcomes: list[Outcome] = []
    doomed = _plan_start(world)
    async with open_orchestrator(plan_of(schedule.deployment)) as orchestrator:
        world.orchestrator = orchestrator
        try:
            with trio.fail_after(30.0):
                await orchestrator.wait_ready()
        except StartupError as error:
            world.hit("startup")
            if error.info.stage not in doomed:
                world.violate(f"the start fails without a cause: {error}")
            return
        except trio.TooSlowError:
            world.violate("it does not start")
            return
        if doomed:
            world.violate("a start that fails goes unnoticed")
        world.note("ready")
        clean = sizes(orchestrator)

        async def one(number: int, load: Load) -> None:
            outcomes.append(await client(world, orchestrator, number, load))

        async with trio.open_nursery() as faults:
            for fault in schedule.faults:
                faults.start_soon(_befall, world, orchestrator, fault)
            async with trio.open_nursery() as clients:
                for number, load in enumerate(schedule.loads):
                    clients.start_soon(one, number, load)
                if schedule.end:
                    await trio.sleep(schedule.end / 1000)
                    world.closing = True
                    world.hit("shutdown")
                    await orchestrator.drain(schedule.end / 400)
            faults.cancel_scope.cancel()
        if not schedule.end:
            await _settle(world, orchestrator)
            await _probe(world, orchestrator)
            await _settle(world, orchestrator)
            for what in leftovers(clean, sizes(orchestrator)):
                world.violate(f"at idle, {what}")
        world.closing = True
        for stage, count in orchestrator.recovery.resumed.items():
            world.hits[f"resumed:{stage}"] += count
    for outcome in outcomes:
        judge(world, outcome, world.deaths > 0, bool(schedule.end))
    for child in world.spawned:
        if child.death is None:
            world.violate(f"{child.name} outlives its deployment")


def _plan_start(world: World) -> set[str]:
    """Faults of the very beginning befall the first start. Returns the stages whose start they make fail."""
    doomed = set()
    plan = plan_of(world.schedule.deployment)
    for fault in world.schedule.faults:
        stage = STAGES[fault.stage]
        if not fault.at and fault.kind in AT_START and fault.replica < plan.stage(stage).replicas:
            world.plan_for_next(stage, fault.replica, fault.kind)
            doomed.add(stage)
    return doomed


async def _befall(world: World, orchestrator: Orchestrator, fault: Fault) -> None:
    """One fault, at its time, on the worker that is there then."""
    stage = STAGES[fault.stage]
    if not fault.at and fault.kind in AT_START:
        return
    await trio.sleep(fault.at / 1000)
    child = world.children.get((stage, fault.replica))
    if child is None:
        return
    replica = orchestrator.pools[stage].replicas[fault.replica]
    world.note(f"fault {fault.kind} on {child.name}")
    match fault.kind:
        case "kill":
            world.hit("kill" if replica.live else "kill_starting")
            child.kill()
        case "kill_writing" | "kill_partial":
            child.die_writing(fault.amount % 8, partial=fault.kind == "kill_partial")
        case "kill_loading" | "kill_restart" | "no_start" | "no_load" | "no_ready":
            world.plan_for_next(stage, fault.replica, fault.kind)
            child.kill()
        case "stall":
            world.hit("stall")
            child.stall(fault.amount / 100)
        case "freeze":
            world.hit("freeze")
            child.stall(FROZEN_S + fault.amount / 10)
        case "lag":
            child.lag()
        case "garbage":
            world.hit("garbage")
            child.babble()
        case "deaf_stop":
            child.be_deaf()
        case "ask":
            try:
                answer = await replica.query("counters", timeout_s=2.0)
            except OmniError as error:
                if error.info.code not in ("stage_unavailable", "stage_died", "deadline_exceeded"):
                    world.violate(f"a question failed: {error}")
                world.hit(f"ask:{error.info.code}")
            else:
                world.hit("ask")
                if "jobs" not in answer:
                    world.violate(f"a question was answered by {answer}")


async def _settle(world: World, orchestrator: Orchestrator) -> None:
    """Wait until nothing of any request is left anywhere and all workers are back."""
    limit = trio.current_time() + SETTLE_S
    while (left := _left(world, orchestrator)) and trio.current_time() < limit:
        await trio.sleep(0.1)
    for what in left:
        world.violate(f"{SETTLE_S:g} s after the last client, {what}")


def _left(world: World, orchestrator: Orchestrator) -> list[str]:
    found = []
    load = orchestrator.admission.load()
    if load.waiting_bytes or any((*load.running.values(), *load.waiting.values(), *load.stages.values())):
        found.append(f"admission counts {load}")
    if orchestrator.inflight:
        found.append(f"requests in flight: {[record.id for record in orchestrator.inflight.values()]}")
    for pool in orchestrator.pools.values():
        for replica in pool.replicas:
            if not replica.live:
                found.append(f"{replica.stage.name}#{replica.index} is {replica.state.value}")
            elif replica.requests:
                found.append(f"{replica.stage.name} holds {len(replica.requests)} requests")
            else:
                found += _held(world, replica)
    return found


def _held(world: World, replica: StageReplica) -> list[str]:
    """What a worker holds."""
    child = world.children[replica.stage.name, replica.index]
    worker = child.worker
    if worker is None:
        return [f"{child.name} has no loop"]
    out = worker._out
    counts = {
        "requests in its engine": len(child.engine.held),
        "jobs": len(out.jobs),
        "jobs that drain": len(out.draining),
        "early chunks": len(worker._early),
        "bytes of its arena": out.arena.used_bytes,
        "bytes of its inbox": worker._links.inbox.used_bytes,
        "unsent emits": len(out._emits),
        "words that it is done": len(out._done),
        "unsent acknowledgements": len(out._acks),
        "bytes for the serving process": len(worker._control._unsent),
        "bytes for other workers": sum(link.pending for link in worker._links),
    }
    return [f"{child.stage} holds {count} {what}" for what, count in counts.items() if count]


async def _probe(world: World, orchestrator: Orchestrator) -> None:
    """After all that, everything works as ever."""
    for shape in (3, 6, 7):
        load = Load(0, shape, 3, "reads", 0, "", 0, False, 1)
        outcome = await client(world, orchestrator, 1000 + shape, load)
        if outcome.completed is None:
            word = "nothing" if outcome.error is None else f"{outcome.error.code} ({outcome.error.message})"
            world.violate(f"after all that, {SHAPES[shape]} gives {word}")
        judge(world, outcome, deaths=False, closing=False)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- what is substituted


class _Errors(logging.Handler):
    """Exceptions that nobody foresaw are violations, also those that somebody logs and survives."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.tracing else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._world.note(f"{record.levelname} {record.getMessage()}{'' if error is None else f' ({error!r})'}")
        if record.levelno >= logging.ERROR and error is not None and not _foreseen(error):
            self._world.violate(f"{record.getMessage()}: {error!r}")


def _foreseen(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_foreseen, error.exceptions))
    return isinstance(error, (ProcessDied, OmniError)) or "asked " in str(error)


@contextmanager
def _substituted(world: World) -> Iterator[None]:
    """The launcher, the clock and trio's dice, for the time of one run."""
    from omni_actors.connectors import listener, tcp
    from omni_actors.orchestrator import orchestrator, record
    from omni_actors.stages.liveness import Watch
    from omni_actors.worker import links, loop

    clock = SimpleNamespace(monotonic=trio.current_time)
    handler = _Errors(world)
    level, propagate = log.level, log.propagate
    with ExitStack() as stack:
        for target, name, value in (
            (orchestrator, "open_launcher", open_sim_launcher),
            (Watch.__init__, "__defaults__", (trio.current_time,)),
            (record, "FEEDS_UNDER_WAY", FEEDS),
            (listener, "time", clock),
            (tcp, "time", clock),
            (links, "time", clock),
            (loop, "time", clock),
            (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (trio._core._run, "_r", random.Random(world.seed)),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        log.addHandler(handler)
        stack.callback(log.removeHandler, handler)
        log.setLevel(handler.level)
        log.propagate = False
        try:
            yield
        finally:
            log.setLevel(level)
            log.propagate = propagate
