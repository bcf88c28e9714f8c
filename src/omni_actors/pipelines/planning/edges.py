"""A plan's edges: the edges of the pipeline, and the edges from the media stage.

Two stages on one platform whose processes can open each other's device memory (the platform's ``transports``) exchange
payloads on the device (connector ``device``) unless a setting says otherwise. Other stages use shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from omni_actors.pipelines.declaration import Edge, Pipeline, Port
from omni_actors.pipelines.deploy.settings import DECLARED, Settings
from omni_actors.pipelines.extensions import CONNECTORS
from omni_actors.pipelines.plan import MEDIA_STAGE, EdgePlan, Origin, PlanError, StagePlan, edge_path
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES

MEDIA_CAPACITY = 8
"""Pieces of one request's media that may be under way to the stage where the media enter."""

MEDIA_BRIDGE = "omni_actors.media.worker.bridge:JoinMedia"
"""Dotted name of the bridge that joins the pieces to clips, images and videos."""


DEVICE = "device"
"""The connector that leaves payloads on the device."""


def edges_of(pipeline: Pipeline, settings: Settings, stages: Iterable[StagePlan]) -> tuple[EdgePlan, ...]:
    """Make a plan's edges.

    Args:
        pipeline: The pipeline.
        settings: The deployment's settings.
        stages: The planned stages.

    Raises:
        PlanError: Two edges between the same stages have different connectors, or a connector does not fit the stages.
    """
    media = [
        Edge(MEDIA_STAGE, place, port.kind, mode=port.mode, capacity=MEDIA_CAPACITY, bridge=MEDIA_BRIDGE)
        for place, port in media_ports(pipeline).items()
    ]
    edges = (*pipeline.edges, *media)
    placed = {stage.name: stage for stage in stages}
    on_device = _on_device(edges, settings, placed)
    ports = ports_of(pipeline)
    found = []
    for index, edge in enumerate(edges):
        at = edge_path(edge.source, edge.stage, edge.port)
        ends = (edge.source, edge.stage)
        usual = (DEVICE, on_device[ends]) if ends in on_device else (edge.connector, DECLARED)
        connector = settings.get(f"{at}.connector", *usual)
        where = settings.where(f"{at}.connector")
        target, plugin = CONNECTORS.named(connector, f"{where}: edge '{edge.source} → {edge.target}'")
        if connector == DEVICE and not transport_between(placed[edge.source], placed[edge.stage]):
            raise PlanError(
                f"{settings.where(f'{at}.connector')}: stages '{edge.source}' (platform "
                f"'{placed[edge.source].platform}') and '{edge.stage}' (platform '{placed[edge.stage].platform}') have "
                f"no device memory that both can open; use shared_memory"
            )
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
                connector=connector,
                on_death=edge.on_death,
                port_kind=ports[edge.target].kind,
                connector_class="" if plugin is None else target,
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


def transport_between(source: StagePlan, target: StagePlan) -> str:
    """Return the best transport by which two stages open each other's device memory; empty without one."""
    if source.platform != target.platform:
        return ""
    return next((kind for kind in source.transports if kind in target.transports), "")


def _on_device(
    edges: Iterable[Edge], settings: Settings, placed: Mapping[str, StagePlan]
) -> dict[tuple[str, str], Origin]:
    """Return the pairs of stages whose payloads stay on the device, with the origin of that decision. Pairs with edges
    of text only, and pairs whose connector is set, are not among them."""
    found: dict[tuple[str, str], Origin] = {}
    said: set[tuple[str, str]] = set()
    for edge in edges:
        ends = (edge.source, edge.stage)
        if f"{edge_path(edge.source, edge.stage, edge.port)}.connector" in settings.given:
            said.add(ends)
        elif edge.kind != "text" and (kind := transport_between(placed[edge.source], placed[edge.stage])):
            found[ends] = Origin("platform", f"{placed[edge.source].platform}, by {kind}")
    return {ends: origin for ends, origin in found.items() if ends not in said}


def media_ports(pipeline: Pipeline) -> dict[str, Port]:
    """Return the ports where decoded media enter, by ``stage.port`` in order of declaration. Several modalities may
    enter at one port."""
    places = [task.entries[m] for task in pipeline.tasks for m in sorted(MEDIA_MODALITIES) if m in task.entries]
    ports = ports_of(pipeline)
    return {place: ports[place] for place in places}


def ports_of(pipeline: Pipeline) -> dict[str, Port]:
    """Return every port of a pipeline by ``stage.port``."""
    return {f"{stage.name}.{port.name}": port for stage in pipeline.stages for port in stage.ports}
