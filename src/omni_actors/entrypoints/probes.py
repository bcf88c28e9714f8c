"""Probes and what operators read: /live, /ready, /health, /version, /metrics. None waits for a model or a codec."""

from __future__ import annotations

import msgspec
import trio

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError
from omni_actors.telemetry.metrics import CONTENT_TYPE
from omni_actors.version import __version__

COUNTERS_S = 2.0
"""How long a scrape waits for the workers' own counters; without them it gives the rest."""


async def live(services: Services, call: Call) -> Reply:
    """200 as long as the process runs."""
    return _json({"status": "live"})


async def ready(services: Services, call: Call) -> Reply:
    """200 when at least one task can be served."""
    tasks = served_tasks(services)
    return _json({"status": "ready" if tasks else "loading", "tasks": tasks}, 200 if tasks else 503)


async def health(services: Services, call: Call) -> Reply:
    """200 when every stage has a live replica; else 503, naming those that have none."""
    states = services.orchestrator.health()
    dead = [name for name, state in states.items() if not state.live]
    stages = {
        name: {"live": state.live, "wanted": state.wanted, "progress": state.progress} for name, state in states.items()
    }
    if not dead:
        return _json({"status": "ok", "stages": stages})
    message = f"No live replica: {', '.join(dead)}."
    error = {"message": message, "type": "unavailable_error", "param": None, "code": "stage_unavailable"}
    return _json({"status": "unavailable", "error": error, "unavailable": dead, "stages": stages}, 503)


async def version(services: Services, call: Call) -> Reply:
    return _json({"version": __version__})


async def metrics(services: Services, call: Call) -> Reply:
    counters = {}
    with trio.move_on_after(COUNTERS_S):
        counters = dict(await services.orchestrator.counters())
    replicas = {name: (state.live, state.wanted) for name, state in services.orchestrator.health().items()}
    fetches = services.media.fetches if services.media is not None else None
    return Reply(services.metrics.render(counters, replicas, fetches), [("content-type", CONTENT_TYPE)])


def served_tasks(services: Services) -> list[str]:
    """Tasks of which some combination of input and output has all its stages live."""
    live = {name for name, state in services.orchestrator.health().items() if state.live}
    return [name for name in services.plan.tasks if any(stages <= live for stages in _ways(services.plan, name))]


def _ways(plan: Plan, name: str) -> list[set[str]]:
    """The stages of each way through a task: one input, one output."""
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
