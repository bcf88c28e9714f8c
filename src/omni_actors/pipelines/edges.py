"""A plan's edges: the pipeline's own, and those on which decoded media come."""

from __future__ import annotations

from omni_actors.pipelines.declaration import Edge, Pipeline, Port
from omni_actors.pipelines.plan import MEDIA_STAGE, EdgePlan, PlanError, edge_path
from omni_actors.pipelines.settings import DECLARED, Settings
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES

MEDIA_CAPACITY = 8
"""Pieces of one request's media that may be under way to its entry stage."""

MEDIA_BRIDGE = "omni_actors.media.bridge:JoinMedia"
"""Dotted name of what makes clips, images and videos of those pieces."""


def edges_of(pipeline: Pipeline, settings: Settings) -> tuple[EdgePlan, ...]:
    """Every edge as it will run. Raises :class:`PlanError` when two stages would need two channels."""
    media = [
        Edge(MEDIA_STAGE, place, port.kind, mode=port.mode, capacity=MEDIA_CAPACITY, bridge=MEDIA_BRIDGE)
        for place, port in media_ports(pipeline).items()
    ]
    found = []
    for index, edge in enumerate((*pipeline.edges, *media)):
        at = edge_path(edge.source, edge.stage, edge.port)
        found.append(
            EdgePlan(
                index=index,
                source=edge.source,
                target=edge.stage,
                port=edge.port,
                kind=edge.kind,
                mode=settings.get(f"{at}.mode", edge.mode, DECLARED),
                capacity=settings.get(f"{at}.capacity", edge.capacity, DECLARED),
                bridge=edge.bridge,
                connector=settings.get(f"{at}.connector", edge.connector, DECLARED),
                on_death=edge.on_death,
            )
        )
    between: dict[tuple[str, str], EdgePlan] = {}
    for it in found:
        other = between.setdefault((it.source, it.target), it)
        if it.connector != other.connector:
            where = settings.where(f"{edge_path(it.source, it.target, it.port)}.connector")
            raise PlanError(
                f"{where}: the edges from '{it.source}' to '{it.target}' share one ordered channel, so "
                f"'{it.port}' cannot travel by {it.connector} and '{other.port}' by {other.connector}"
            )
    return tuple(found)


def media_ports(pipeline: Pipeline) -> dict[str, Port]:
    """Where decoded media enter, each place once in order of declaration: several modalities may share one."""
    places = [task.entries[m] for task in pipeline.tasks for m in sorted(MEDIA_MODALITIES) if m in task.entries]
    ports = {f"{stage.name}.{port.name}": port for stage in pipeline.stages for port in stage.ports}
    return {place: ports[place] for place in places}
