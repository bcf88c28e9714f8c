"""The clients of a run, each with its habits, and what one of them may find at its end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import trio

from omni_actors.orchestrator import Orchestrator, RequestStream
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import Completed, Event, MediaChunk, Request, TextDelta, Usage

from .deployments import LIMITS, plan_has_tcp
from .outputs import Expected, expected, fed_value, mix
from .pictures import check_pictures
from .schedule import STAGES, Load
from .world import World

HURRY_S = 0.1

FATAL = frozenset({"crash", "poison", "bug"})
"""Troubles that end workers."""


@dataclass(slots=True)
class Outcome:
    """What a client saw. ``error`` or ``completed`` is the terminal event; a client that left has neither."""

    load: Load
    id: str
    seed: int
    events: list[Event] = field(default_factory=list)
    admitted: bool = False
    completed: Completed | None = None
    error: ErrorInfo | None = None
    left: bool = False
    begun_at: float = 0.0
    ended_at: float = 0.0


def request_of(load: Load, id: str, seed: int) -> Request:
    deadline_s = HURRY_S + load.amount / 1000 if load.habit == "hurry" else None
    sim = {
        "priority": load.priority,
        "deadline_s": LIMITS["deadline_s"] if deadline_s is None else deadline_s,
        "seed": seed,
        "tokens": load.tokens,
        "choices": load.choices,
        "big": load.big,
        "trouble": load.trouble,
        "where": STAGES[load.where],
        "after": load.amount % 4,
    }
    params: dict[str, Any] = {"sim": sim}
    if load.task == "draw":
        params["image"] = ImageGeneration(
            n=load.choices, steps=load.tokens, previews=load.amount % 3, progress=load.amount % 2 == 0
        )
    return Request(
        task=load.task,
        outputs=load.outputs,
        params=params,
        id=id,
        deadline_s=deadline_s,
        tenant=load.tenant,
        priority=load.priority,
    )


async def client(world: World, orchestrator: Orchestrator, number: int, load: Load) -> Outcome:
    """Make one request, with the load's habit, and say what came of it."""
    outcome = Outcome(load, f"r{number}", mix(number, 23))
    await trio.sleep(load.at / 1000)
    outcome.begun_at = trio.current_time()
    request = request_of(load, outcome.id, outcome.seed)
    refused_early = _early_refusal(orchestrator, request)
    with trio.CancelScope() as scope:
        if load.habit == "gone":
            scope.deadline = trio.current_time() + load.amount / 1000
        try:
            async with orchestrator.open(request) as stream:
                outcome.admitted = True
                world.streams.add(stream)
                if load.task == "stream":
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_feed, world, stream, outcome)
                        await _receive(world, stream, outcome)
                        nursery.cancel_scope.cancel()
                else:
                    await _receive(world, stream, outcome)
            world.streams.discard(stream)
            await _nothing_more(world, stream, outcome)
        except OmniError as error:
            outcome.error = error.info
            _check_refusal(world, orchestrator, outcome)
    if scope.cancelled_caught:
        outcome.left = True
    outcome.ended_at = trio.current_time()
    if refused_early not in (None, outcome.error):
        world.violate(f"{outcome.id} was to be refused ({refused_early}), and was not: {outcome.error}")
    if outcome.left:
        world.hit(f"client:{load.habit}")
    word = "left" if outcome.left else "completed" if outcome.completed else outcome.error and outcome.error.code
    world.note(f"{outcome.id} ({load.task} {load.outputs} {load.habit} {load.trouble}): {word}")
    return outcome


def _early_refusal(orchestrator: Orchestrator, request: Request) -> ErrorInfo | None:
    """What is said of a request before it is made."""
    try:
        orchestrator.reject_early(request, priority_may_drop=False)
    except OmniError as error:
        return error.info
    return None


def _check_refusal(world: World, orchestrator: Orchestrator, outcome: Outcome) -> None:
    """A request that is refused at once is refused for what is so at that moment."""
    error = outcome.error
    assert error is not None
    if outcome.admitted or trio.current_time() > outcome.begun_at:
        return
    load = orchestrator.admission.load()
    match error.code:
        case "overloaded":
            world.hit("refused: full")
            waiting = sum(load.waiting.values())
            inside = orchestrator.inflight.values()
            # Else the line that was full in this moment is another one already: some of it have their seats.
            known = not orchestrator.admission.closed and sum(load.running.values()) == len(inside)
            known = known and all(it.admitted_at < trio.current_time() for it in inside)
            if known and waiting < world.limits.max_queued and not (outcome.load.tenant and world.limits.max_per_key):
                world.violate(f"{outcome.id} is refused for want of room while {waiting} wait")
            if error.retry_after is None:
                world.violate(f"{outcome.id} is not told when to come back")
        case "stage_unavailable":
            world.hit("refused: down")
            assert error.stage is not None
            takes = any(replica.accepts_requests for replica in orchestrator.pools[error.stage].replicas)
            if plan_has_tcp(world.schedule.deployment):
                takes = takes and _whole(orchestrator, request_of(outcome.load, outcome.id, outcome.seed))
            if takes:
                world.violate(f"{outcome.id} is refused for want of {error.stage}, which is there")


def _whole(orchestrator: Orchestrator, request: Request) -> bool:
    """Whether some replicas of its stages are all linked."""
    graph = orchestrator.subgraph(request)
    names = [part.stage.name for part in graph.parts]
    choices = [[it for it in orchestrator.pools[name].replicas if it.accepts_requests] for name in names]
    for replicas in product(*choices):
        by_name = dict(zip(names, replicas, strict=True))
        if all((edge.target, by_name[edge.target].index) in by_name[edge.source].links for edge in graph.edges):
            return True
    return False


async def _receive(world: World, stream: RequestStream, outcome: Outcome) -> None:
    load = outcome.load
    if load.habit == "never":
        outcome.left = True
        return
    if load.habit == "deaf":
        await trio.sleep(load.amount / 100)
        outcome.left = load.amount % 2 == 0
        if outcome.left:
            return
    try:
        async for event in stream:
            if outcome.completed is not None or outcome.error is not None:
                world.violate(f"{outcome.id} got something after its end")
            if type(event) is Completed:
                outcome.completed = event
            else:
                outcome.events.append(event)
            world.look()
            if load.habit == "slow":
                await trio.sleep(load.amount / 1000)
            if load.habit == "leaves" and len(outcome.events) > load.amount % 5:
                outcome.left = True
                return
    except OmniError as error:
        if outcome.completed is not None:
            world.violate(f"{outcome.id} failed after it was complete")
        outcome.error = error.info


async def _nothing_more(world: World, stream: RequestStream, outcome: Outcome) -> None:
    """After the block is left there is nothing more to receive but the error that was there."""
    try:
        event = await stream.receive()
    except trio.EndOfChannel:
        return
    except OmniError:
        if outcome.error is None and not outcome.left:
            world.violate(f"{outcome.id} ended twice")
        return
    world.violate(f"{outcome.id} got {type(event).__name__} after its block was left")


async def _feed(world: World, stream: RequestStream, outcome: Outcome) -> None:
    load = outcome.load
    try:
        for i in range(load.tokens):
            if world.chance.random() < 0.5:
                await trio.sleep(world.chance.random() * 0.03)
            meta = {"value": fed_value(outcome.seed, i)}
            await stream.feed("text", "n", meta, end=i + 1 == load.tokens)
            world.hits["feed"] += 1
    except OmniError as error:
        world.violate(f"{outcome.id}: its input was refused: {error.info.message}")
    try:
        await stream.feed("text", "n", None, end=True)
    except OmniError as error:
        if error.info.status != 400:
            world.violate(f"{outcome.id}: input after its end was refused with {error.info.status}")
    else:
        world.violate(f"{outcome.id}: input after its end was taken")


def judge(world: World, outcome: Outcome, closing: bool) -> None:
    """Whether a client's request came to an end that it may have. ``closing`` says whether the deployment was ended
    meanwhile."""
    load, id = outcome.load, outcome.id
    pictures = check_pictures(world, id, outcome.events, load)
    if outcome.completed is not None:
        if load.trouble != "early":
            _compare(world, outcome, expected(load, outcome.seed), pictures)
        return
    if outcome.left:
        return
    error = outcome.error
    if error is None:
        world.violate(f"{id} ended without a terminal event")
        return
    may: set[str | None] = set()
    if load.trouble:
        may |= {"stage_failed", "out_of_memory"} | ({None} if load.trouble == "refuse" else set())
        may |= {"stage_died", "poison"} if load.trouble in FATAL else set()
        may |= {"not_resumable"} if load.trouble == "early" else set()
    if world.deaths:
        may.add("stage_unavailable")
    if world.deaths.total() + world.breaks > world.limits.max_resumes:
        may.add("stage_died")
    if error.stage is not None and world.inflicted[error.stage] and world.deaths[error.stage] > 1:
        may.add("poison")  # it may well have been alone when that befell its worker
    if world.breaks:
        may |= {"link_lost", "stage_unavailable"}
    if "drain" in world.commands and not outcome.admitted:
        may.add("stage_unavailable")
    if load.habit == "hurry":
        may.add("deadline_exceeded")
    if load.most_bytes > world.limits.sink_bytes:
        may.add("slow_client")
    if not outcome.admitted:
        may.add("overloaded")
    if closing:
        may |= {"draining", "stage_died", "stage_unavailable"}
    if error.code not in may:
        world.violate(f"{id} failed without a cause: {error.code} ({error.message})")
    if error.code is not None:
        world.hits[f"error:{error.code}"] += 1
    if error.status >= 500 and error.code in ("stage_died", "stage_failed", "poison") and error.stage is None:
        world.violate(f"{id}: an error that names no stage: {error.message}")
    if "Traceback" in error.message:
        world.violate(f"{id}: an error with a traceback")


def _compare(world: World, outcome: Outcome, wanted: Expected, pictures: list[bytes]) -> None:
    """The output is the same as alone and undisturbed, whatever it went through."""
    texts: dict[int, str] = defaultdict(str)
    audio = b""
    finished: dict[int, int] = defaultdict(int)
    for event in outcome.events:
        if type(event) is TextDelta:
            if finished[event.index]:
                world.violate(f"{outcome.id}: text after the end of choice {event.index}")
            texts[event.index] += event.text
            finished[event.index] += event.finish_reason is not None
        elif type(event) is MediaChunk and event.modality == "audio":
            audio += event.data
    id = outcome.id
    got = None if wanted.texts is None else tuple(texts[i] for i in range(len(wanted.texts)))
    if got != wanted.texts:
        world.violate(f"{id}: text {got} instead of {wanted.texts}")
    if wanted.texts is not None and any(finished[i] != 1 for i in range(len(wanted.texts))):
        world.violate(f"{id}: choices ended {dict(finished)} times")
    if audio != (wanted.audio or b""):
        size = len(wanted.audio or b"")
        what = f"{len(audio)} bytes" if len(audio) != size else "other bytes of that size"
        world.violate(f"{id}: audio of {size} bytes came as {what}")
    assert outcome.completed is not None
    if wanted.image is not None and pictures != [wanted.image]:
        world.violate(f"{id}: {len(pictures)} pictures, and not the one of the text")
    if (drawn := wanted.drawn) is not None:
        usage = Usage(images=drawn.pictures, steps=drawn.pictures * drawn.steps, skipped_steps=drawn.skipped)
        if len(pictures) != drawn.pictures:
            world.violate(f"{id}: {len(pictures)} pictures instead of {drawn.pictures}")
        if outcome.completed.usage.get("denoiser") != usage:
            world.violate(f"{id}: {outcome.completed.usage.get('denoiser')} is counted instead of {usage}")
    counted = outcome.completed.usage.get("writer")
    if counted is not None and counted.completion_tokens != wanted.tokens:
        world.violate(f"{id}: {counted.completion_tokens} tokens are counted instead of {wanted.tokens}")
