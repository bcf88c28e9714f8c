"""The default number of requests that a stage holds at once: what its engine can work on, and little more.

Requests that wait in a worker cannot be ordered by priority, shared out fairly or taken back cheaply, and they delay
every answer; requests that wait for admission can. So the number of a stage is

- for an autoregressive engine, its batch and an eighth of that, so that a finished request is replaced without a round
  trip;
- for a one-shot engine, two batches: one runs while the next is collected. The number is at least that of the stages
  that feed it: a request is in all stages of its subgraph from its admission on, so a small number of a later, idle
  stage would keep requests out of the first stage. Behind an edge that hands on only at the end (``full``) the two
  numbers are added, since one stage works when the other has finished;
- for any other engine, no bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType

from omni_actors.pipelines.plan import MEDIA_STAGE, EdgePlan, StagePlan


def sized(stages: Iterable[StagePlan], edges: Iterable[EdgePlan]) -> tuple[StagePlan, ...]:
    """Return the stages with ``limits["max_inflight"]`` filled in where it is open and a number is known."""
    by_name = {stage.name: stage for stage in stages}
    inner = [edge for edge in edges if edge.source != MEDIA_STAGE]
    totals: dict[str, int] = {}

    def total(name: str) -> int:
        """Return the number of all replicas of a stage together; 0 if unknown."""
        if name not in totals:
            stage = by_name[name]
            own = _own(stage) * stage.replicas
            totals[name] = max([own, *(fed(edge, own) for edge in inner if edge.target == name and _one_shot(stage))])
        return totals[name]

    def fed(edge: EdgePlan, own: int) -> int:
        above = total(edge.source)
        return own + above if edge.mode == "full" else above

    return tuple(_with(stage, total(stage.name)) for stage in by_name.values())


def _one_shot(stage: StagePlan) -> bool:
    return "max_batch" in stage.limits and stage.limits.get("max_inflight") is None


def _own(stage: StagePlan) -> int:
    """Return the number of one replica for its own engine; 0 if unknown."""
    given = stage.limits.get("max_inflight")
    if given is not None:
        return given
    batch = stage.options.get("max_batch")
    if batch is not None:
        return int(batch) + max(1, int(batch) // 8)
    return 2 * (stage.limits.get("max_batch") or 0)


def _with(stage: StagePlan, total: int) -> StagePlan:
    if stage.limits.get("max_inflight") is not None or not total:
        return stage
    each = math.ceil(total / stage.replicas)
    most = stage.limits.get("max_requests") or each
    return replace(stage, limits=MappingProxyType({**stage.limits, "max_inflight": min(each, most)}))
