"""Probes and pages for operators: /live, /ready, /health, /version, /metrics. None of them waits for a model or a
codec."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import msgspec
import trio

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.status import StageHealth
from omni_actors.telemetry.metrics import CONTENT_TYPE
from omni_actors.version import __version__

COUNTERS_S = 2.5
"""Seconds for which a scrape waits for the workers' own counters; afterwards it answers without them. (Twice the
workers' time, for a scrape that first waits for another one's answer.)"""

PUBLIC_CHARS = 300
"""Most characters of a worker's message that are shown publicly."""

_PATH = re.compile(r"(?<![\w./:])/(?:[^\s'\":,;()<>]+/)+")


async def live(services: Services, call: Call) -> Reply:
    """Answer 200 as long as the process runs."""
    return _json({"status": "live"})


async def ready(services: Services, call: Call) -> Reply:
    """Answer 200 when at least one task can be served."""
    tasks = served_tasks(services)
    return _json({"status": "ready" if tasks else "loading", "tasks": tasks}, 200 if tasks else 503)


async def health(services: Services, call: Call) -> Reply:
    """Answer 200 when every stage can take requests.

    Otherwise 503 names the stages that cannot: since when, how often restarted, how the last worker ended, and when a
    replica is likely to be ready. A stage whose only replica is being replaced by command counts as able, because
    requests wait for it. A stage that has lost all links to another live stage does not.
    """
    states = services.orchestrator.health()
    dead = [name for name, state in states.items() if not serves(state)]
    unlinked = {name: list(state.unlinked) for name, state in states.items() if state.unlinked}
    stages = {name: _shown(state) for name, state in states.items()}
    if not dead and not unlinked:
        return _json({"status": "ok", "stages": stages})
    problems = [f"No live replica: {', '.join(dead)}."] if dead else []
    problems += [f"No link: {name} with {', '.join(others)}." for name, others in unlinked.items()]
    error = {"message": " ".join(problems), "type": "unavailable_error", "param": None, "code": "stage_unavailable"}
    body = {"status": "unavailable", "error": error, "unavailable": dead, "stages": stages}
    if unlinked:
        body["unlinked"] = unlinked
    reply = _json(body, 503)
    expected = max((states[name].next_s or 0.0 for name in dead), default=0.0)
    return Reply(reply.body, [*reply.headers, ("retry-after", str(max(1, math.ceil(expected))))], reply.status)


async def version(services: Services, call: Call) -> Reply:
    return _json({"version": __version__})


async def metrics(services: Services, call: Call) -> Reply:
    counters = {}
    with trio.move_on_after(COUNTERS_S):
        counters = dict(await services.counters())
    stages = services.orchestrator.health()
    replicas = {name: (state.live, state.wanted) for name, state in stages.items()}
    fetches = services.media.fetches if services.media is not None else None
    states = {name: Counter(state.states) for name, state in stages.items()}
    ends = {name: {str(cause): number for cause, number in state.exits.items()} for name, state in stages.items()}
    orchestrator = services.orchestrator
    body = services.metrics.render(
        counters, replicas, fetches, states, ends, orchestrator.load(), orchestrator.resumes()
    )
    return Reply(body, [("content-type", CONTENT_TYPE)])


def serves(state: StageHealth) -> bool:
    """Return whether requests for the stage are accepted."""
    return bool(state.live) or state.replacing


def served_tasks(services: Services) -> list[str]:
    """Return the tasks for which some combination of input and output has all its stages live."""
    live = {name for name, state in services.orchestrator.health().items() if serves(state)}
    return [name for name in services.plan.tasks if any(stages <= live for stages in _ways(services.plan, name))]


def public(message: str) -> str:
    """Return a worker's message in its public form: the first line, and only the last part of each path."""
    line = _PATH.sub("…/", message.strip().partition("\n")[0])
    return line if len(line) <= PUBLIC_CHARS else f"{line[: PUBLIC_CHARS - 1]}…"


def _shown(state: StageHealth) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "live": state.live,
        "wanted": state.wanted,
        "progress": public(state.progress),
        "restarts": state.restarts,
    }
    if state.replacing:
        shown["replacing"] = True
    if state.down_s is not None:
        shown["down_s"] = round(state.down_s, 3)
    if state.attempt_s is not None:
        shown["next_attempt_s"] = round(state.attempt_s, 3)
    if state.next_s is not None:
        shown["ready_in_s"] = round(state.next_s, 3)
    if (end := state.last_exit) is not None:
        ago_s = round(trio.current_time() - end.at, 3)
        shown["last_end"] = {"cause": end.cause, "message": public(end.error.message), "ago_s": ago_s}
    if state.unlinked:
        shown["unlinked"] = list(state.unlinked)
    return shown


def _ways(plan: Plan, name: str) -> list[set[str]]:
    """Return the stages of each way through a task, with one input and one output."""
    task = plan.tasks[name]
    ways = []
    for source in task.entries:
        for target in task.outputs:
            try:
                found = subgraph(plan, name, (source,), (target,))
            except OmniError:
                continue
            ways.append({part.stage.name for part in found.parts})
    return ways


def _json(value: object, status: int = 200) -> Reply:
    return Reply(msgspec.json.encode(value), status=status)
