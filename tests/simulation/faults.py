"""What befalls a run besides its requests: each fault at its time, on the worker that is there then."""

from __future__ import annotations

import contextlib

import trio

from omni_actors.orchestrator import Orchestrator
from omni_actors.protocol.codec import frame
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Abort, Ack, Feed, Ledger, Step
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, StepProgress, TextDelta, Usage
from omni_actors.stages.replica import StageReplica

from .deployments import plan_of
from .launcher import SimChild
from .schedule import STAGES, Fault
from .world import Crash, World

FROZEN_S = 40.0
"""How long a worker stands still that is beyond its budget."""

AT_START = frozenset({"no_start", "no_load", "no_ready", "kill_loading"})
"""Faults that at time 0 befall the first start."""

STRANGER = 10**6
"""A key of no attempt."""


def plan_start(world: World) -> set[str]:
    """Faults of the very beginning befall the first start. Returns the stages whose start they make fail."""
    doomed = set()
    plan = plan_of(world.schedule.deployment)
    for fault in world.schedule.faults:
        stage = STAGES[fault.stage]
        if not fault.at and fault.kind in AT_START and fault.replica < plan.stage(stage).replicas:
            world.plan_for_next(stage, fault.replica, fault.kind)
            doomed.add(stage)
    return doomed


async def befall(world: World, orchestrator: Orchestrator, fault: Fault) -> None:
    """One fault."""
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
        case "drain" | "replace" | "restart" | "kill_command":
            await _command(world, orchestrator, replica, fault)
        case "ask":
            await _ask(world, replica)
        case _:
            _strike(world, replica, child, fault)


def _strike(world: World, replica: StageReplica, child: SimChild, fault: Fault) -> None:
    match fault.kind:
        case "kill":
            world.hit("kill" if replica.live else "kill_starting")
            child.kill()
        case "kill_writing" | "kill_partial":
            child.die_writing(fault.amount % 8, partial=fault.kind == "kill_partial")
        case "kill_loading" | "kill_restart" | "no_start" | "no_load" | "no_ready":
            world.plan_for_next(replica.stage.name, replica.index, fault.kind)
            child.kill()
        case "stall":
            world.hit("stall")
            child.stall(fault.amount / 100)
        case "freeze":
            world.hit("freeze")
            child.stall(FROZEN_S + fault.amount / 10)
        case "leap":
            world.hit("leap")
            world.clock.jump(fault.amount / 20)
        case "lag":
            child.lag()
        case "garbage":
            world.hit("garbage")
            child.babble(b"\x05\0\0\0\xc1\xc1\xc1\xc1\xc1")
        case "stale":
            world.hit("stale")
            _stale(replica, child)
        case "unlink" | "mangle":
            if child.break_link(mangle=fault.kind == "mangle", which=fault.amount):
                world.breaks += 1
                world.hit(fault.kind)
        case "deaf_stop":
            world.hit("deaf_stop")
            child.be_deaf()
        case _:
            raise AssertionError(f"an unknown fault {fault.kind}")


async def _command(world: World, orchestrator: Orchestrator, replica: StageReplica, fault: Fault) -> None:
    """What an operator does."""
    stage, index, control = replica.stage.name, replica.index, orchestrator.control
    world.hit(fault.kind)
    world.commands.add(fault.kind)
    try:
        match fault.kind:
            case "kill_command":
                control.kill(stage, index)
            case "replace":
                await control.replace(stage, index, fault.amount / 100)
                world.hit("replaced")
            case "restart":
                await control.restart(None if fault.amount % 2 else stage, fault.amount / 100)
                world.hit("restarted")
            case _:
                control.drain(stage, index)
                try:
                    await trio.sleep(fault.amount / 200)
                finally:
                    with contextlib.suppress(OmniError):  # another command is at it, and undrains it
                        control.undrain(stage, index)
    except OmniError as error:
        world.hit(f"command:{error.info.code}")
        if error.info.code == "replica_busy" or (error.info.code == "replacement_failed" and world.deaths):
            return
        if error.info.code == "replica_not_running" and replica.pid is None:  # killed between two workers
            return
        world.violate(f"the command {fault.kind} of {stage} failed: {error}")


async def _ask(world: World, replica: StageReplica) -> None:
    try:
        answer = await replica.query("counters", timeout_s=2.0)
    except OmniError as error:
        world.hit(f"ask:{error.info.code}")
        if error.info.code not in ("stage_unavailable", "stage_died", "deadline_exceeded"):
            world.violate(f"a question failed: {error}")
    else:
        world.hit("ask")
        if "jobs" not in answer:
            world.violate(f"a question was answered by {answer}")


def _stale(replica: StageReplica, child: SimChild) -> None:
    """Each side gets words about requests that it does not know (any more)."""
    for key in (0, STRANGER):
        if key not in replica.requests:
            replica.send(frame(Abort(key)))
            replica.send(frame(Feed(key, "text", "n", {"value": 1}, False)))
    key = STRANGER
    child.babble(
        frame(
            Step(
                texts=[TextDelta(key, 0, "x", [1], "stop")],
                media=[MediaChunk(key, "audio", {"channels": 1}, b"xx"), MediaChunk(key, "image", {"index": 0}, b"x")],
                progress=[StepProgress(key, 0, 1, 2)],
                done=[StageDone(key, Usage())],
                failed=[StageFailed(key, ErrorInfo(message="a stranger failed"))],
                released=[key],
                fed=[(key, 9)],
                ledger=[Ledger(key, 0, [1])],
            )
        )
    )
    if child.worker is not None and child.death is None:
        try:
            for link in child.worker._links:
                link.send_ack(Ack(key, 0, 3))
                child.worker._links.flush(link)
        except Crash:  # a death that was to come with a write, and this is one
            child.kill()
