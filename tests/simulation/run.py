"""Running one schedule: the deployment, its clients and its faults, and what has to hold at the end."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from omni_actors.orchestrator import Orchestrator, StartupError, open_orchestrator
from omni_actors.stages.replica import StageReplica

from .clients import Outcome, client, judge
from .deployments import plan_of
from .faults import befall, plan_start
from .leftovers import leftovers, sizes
from .schedule import SHAPES, Load, Schedule
from .substitutes import Deadlock, substituted, virtual_clock
from .world import WORLD, World

PATIENCE_S = 2000.0
"""Virtual seconds that a run may take: each request's deadline, and what follows on it."""

SPIN_S = 10.0
"""Seconds of CPU time that a run may take (it takes some hundredths)."""

SETTLE_S = 120.0
"""Virtual seconds after the last client until nothing of it is left, and all workers are back."""


class _Spinning(BaseException):
    """Somebody does not let time go by."""


@contextmanager
def _bounded() -> Iterator[None]:
    """Interrupt a run that takes too much CPU time."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise _Spinning

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, SPIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True, slots=True)
class Report:
    """What one run found. ``hits`` counts the kinds of fault that took effect."""

    violations: list[str]
    hits: dict[str, int]
    trace: list[str]
    virtual_s: float


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

    world.clock = virtual_clock()
    with substituted(world), _bounded():
        try:
            trio.run(main, clock=world.clock, strict_exception_groups=True)
        except trio.TrioInternalError as error:
            if not isinstance(error.__cause__, Deadlock | _Spinning):
                raise
            what = "hangs for ever" if isinstance(error.__cause__, Deadlock) else "goes round in circles"
            world.violate(f"it {what}: {world.where()}")
        except Exception as error:
            world.violate(f"it fails: {error!r}")
            if tracing:
                raise
        except (_Spinning, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.split(_Spinning)[1] is not None:
                raise
            world.violate(f"it goes round in circles: {world.where()}")
    world.forget()
    if _descriptors() != before:
        gc.collect()  # a mapping has a descriptor of its own, and may be part of a cycle
        if (after := _descriptors()) > before:
            world.violate(f"{after - before} descriptors are left")
    return Report(world.violations, dict(world.hits), world.trace, elapsed)


async def _run(world: World) -> None:
    schedule = world.schedule
    outcomes: list[Outcome] = []
    doomed = plan_start(world)
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
                faults.start_soon(befall, world, orchestrator, fault)
            async with trio.open_nursery() as clients:
                for number, load in enumerate(schedule.loads):
                    clients.start_soon(one, number, load)
                if schedule.end:
                    await trio.sleep(schedule.end / 1000)
                    world.hit("shutdown")
                    await orchestrator.drain(schedule.end / 400)
            faults.cancel_scope.cancel()
        if not schedule.end:
            await _settle(world, orchestrator)
            await _probe(world, orchestrator)
            await _settle(world, orchestrator)
            for what in leftovers(clean, sizes(orchestrator)):
                world.violate(f"at idle, {what}")
        for stage, count in orchestrator.recovery.resumed.items():
            world.hits[f"resumed:{stage}"] += count
        stuck = sum(replica.history.exits["stuck"] for pool in orchestrator.pools.values() for replica in pool.replicas)
        if stuck and not world.hits["freeze"] and not world.hits["stall"]:
            world.violate(f"{stuck} workers are ended as stuck, and none was")
    for outcome in outcomes:
        judge(world, outcome, bool(schedule.end))
    for child in world.spawned:
        if child.death is None:
            world.violate(f"{child.name} outlives its deployment")


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
    for edge in orchestrator.plan.edges:
        for source in orchestrator.pools[edge.source].replicas:
            for target in orchestrator.pools[edge.target].replicas:
                if source.live and target.live and (edge.target, target.index) not in source.links:
                    found.append(f"{source.name} has no link to {target.name}")
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
        "jobs": len(out.requests),
        "jobs that drain": len(out.draining),
        "early chunks": len(worker._intake.early),
        "bytes of its arena": out.send_queue.arena.used_bytes,
        "bytes of its inbox": worker._links.inbox.used_bytes,
        "payloads that have not left": out.send_queue.pending,
        "words that it is done": len(out._done),
        "unsent acknowledgements": len(out._acks),
        "bytes for the serving process": len(worker._control._unsent),
        "bytes for other workers": sum(link.pending for link in worker._links),
    }
    return [f"{child.stage} holds {count} {what}" for what, count in counts.items() if count]


async def _probe(world: World, orchestrator: Orchestrator) -> None:
    """After all that, everything works as ever: a request of one kind or another is answered."""
    load = Load(shape=world.chance.choice((3, 6, 7, 9)), tokens=3)
    before = Counter(world.inflicted)
    outcome = await client(world, orchestrator, 1000, load)
    error = outcome.error
    # Workers that are to end at their next word may have waited for this one.
    killed = error is not None and error.code == "poison" and (world.inflicted - before)[str(error.stage)] > 1
    if outcome.completed is None and not killed:
        word = "nothing" if outcome.error is None else f"{outcome.error.code} ({outcome.error.message})"
        world.violate(f"after all that, {SHAPES[load.shape]} gives {word}")
    judge(world, outcome, closing=False)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
