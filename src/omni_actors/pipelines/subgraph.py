"""The part of a plan that one request needs.

A stage is active if the request's inputs can reach it and it leads to a final stage, a stage that emits a wanted
modality. All functions are pure and depend on the plan alone, so results are kept as long as the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from types import MappingProxyType

from msgspec import structs

from omni_actors.pipelines.declaration import Task
from omni_actors.pipelines.plan import MEDIA_STAGE, EdgePlan, Plan, StagePlan
from omni_actors.protocol.errors import invalid_request

MEDIA_MODALITIES = frozenset({"audio", "image", "video"})
"""Input modalities that the media stage decodes. All media that enter at one port come over one edge."""

Key = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of an input modality. ``port`` is ``None`` for an input that comes with the parameters."""

    stage: StagePlan
    port: str | None


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage's part in a request.

    ``ports`` are the ports that get input, from an active edge or from the client. ``visible`` says that the client
    wants the stage's output. ``sections`` are the parameter sections that the stage reads. ``tcp_inputs`` are the edges
    among ``inputs`` that use TCP.
    """

    stage: StagePlan
    ports: tuple[str, ...]
    visible: bool
    sections: tuple[str, ...]
    inputs: tuple[EdgePlan, ...]
    outputs: tuple[EdgePlan, ...]
    tcp_inputs: tuple[EdgePlan, ...]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The stages and edges that one request needs. ``parts`` are in topological order; requests are submitted in
    reverse order, consumers first."""

    task: Task
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[StagePart, ...]
    edges: tuple[EdgePlan, ...]
    entries: Mapping[str, Entry]
    """The entries by input modality."""
    finals: tuple[StagePlan, ...]
    """The stages whose end completes the request."""
    sections: frozenset[str]
    """The parameter sections that at least one stage reads."""


def subgraph(plan: Plan, task: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Subgraph:
    """Return the part of a plan that makes outputs of inputs.

    The plan keeps the result. Only valid combinations are kept, so their number is small.

    Args:
        plan: The deployment.
        task: The task's name.
        inputs: The input modalities of the request.
        outputs: The wanted output modalities.

    Raises:
        OmniError: 400 for a request that the plan cannot serve as a whole; ``param`` is ``task``, ``input`` or
            ``modalities``.
    """
    kept: dict[Key, Subgraph] = plan.subgraphs
    key = (task, inputs, outputs)
    if (made := kept.get(key)) is None:
        made = kept[key] = _make(plan, task, inputs, outputs)
    return made


def restricted(plan: Plan, needed: Subgraph) -> Plan:
    """Return the plan of a deployment for requests of one shape: only the stages that such requests need.

    The media stage stays if media enter or leave. Threads stay as they were shared out.

    Args:
        plan: The deployment.
        needed: The subgraph of the requests.
    """
    names = {part.stage.name for part in needed.parts}
    if MEDIA_MODALITIES & {*needed.inputs, *needed.outputs}:
        names.add(MEDIA_STAGE)
    stages = [stage for stage in plan.stages if stage.name in names]
    task = replace(
        needed.task,
        entries={modality: needed.task.entries[modality] for modality in needed.inputs},
        outputs={modality: needed.task.outputs[modality] for modality in needed.outputs},
    )
    return replace(
        plan,
        stages=tuple(replace(stage, index=index) for index, stage in enumerate(stages)),
        edges=tuple(structs.replace(edge, index=index) for index, edge in enumerate(needed.edges)),
        tasks=MappingProxyType({task.name: task}),
    )


def _make(plan: Plan, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Subgraph:
    task = plan.tasks.get(name)
    if task is None:
        raise invalid_request(f"This model has no task '{name}'; it has: {_names(plan.tasks)}.", "task")
    _known(f"Task '{name}' takes no input", inputs, task.entries, "input")
    _known(f"Task '{name}' gives no output", outputs, task.outputs, "modalities")

    entries = {modality: _entry(plan, task.entries[modality]) for modality in inputs}
    finals = {task.outputs[modality] for modality in outputs}
    inner = [edge for edge in plan.edges if edge.source != MEDIA_STAGE]
    forward = _adjacency((e.source, e.target) for e in inner)
    backward = _adjacency((e.target, e.source) for e in inner)
    needed = _closure(finals, backward)
    fed_by = {modality: _closure({entry.stage.name}, forward) for modality, entry in entries.items()}
    active = needed & set().union(*fed_by.values())

    for modality in outputs:
        if task.outputs[modality] not in active:
            raise invalid_request(
                f"Task '{name}' cannot make output '{modality}' of input {_names(inputs)}.", "modalities"
            )
    for modality, entry in entries.items():
        if entry.stage.name not in active:
            raise invalid_request(f"Input '{modality}' does not contribute to {_names(outputs)}.", "input")

    edges = [edge for edge in inner if edge.source in active and edge.target in active]
    media = [edge for edge in plan.edges if edge.source == MEDIA_STAGE and _delivers(edge, entries)]
    if MEDIA_MODALITIES & set(inputs):
        active = active | {MEDIA_STAGE}
    edges.extend(media)
    fed = _fed_ports(name, entries, edges)
    for stage in plan.stages:
        if stage.name in active:
            for port in stage.declaration.ports:
                if port.required and (stage.name, port.name) not in fed:
                    place = f"{stage.name}.{port.name}"
                    raise invalid_request(
                        f"Task '{name}' with input {_names(inputs)} leaves '{place}' without a source.", "input"
                    )

    order = TopologicalSorter({s.name: [e.source for e in edges if e.target == s.name] for s in plan.stages})
    parts = tuple(
        StagePart(
            stage=(stage := plan.stage(it)),
            ports=tuple(p.name for p in stage.declaration.ports if (it, p.name) in fed),
            visible=it in finals,
            sections=stage.declaration.sections,
            inputs=tuple(e for e in edges if e.target == it),
            outputs=tuple(e for e in edges if e.source == it),
            tcp_inputs=tuple(e for e in edges if e.target == it and e.connector == "tcp"),
        )
        for it in order.static_order()
        if it in active
    )
    return Subgraph(
        task=task,
        inputs=inputs,
        outputs=outputs,
        parts=parts,
        edges=tuple(edges),
        entries=entries,
        finals=tuple(part.stage for part in parts if part.visible),
        sections=frozenset(name for part in parts if part.stage.name != MEDIA_STAGE for name in part.sections),
    )


def _known(what: str, asked: tuple[str, ...], known: Mapping[str, str], param: str) -> None:
    if not asked:
        raise invalid_request(f"At least one of {_names(known)} is needed.", param)
    for modality in asked:
        if modality not in known:
            raise invalid_request(f"{what} '{modality}'; it knows: {_names(known)}.", param)
    if len(set(asked)) != len(asked):
        raise invalid_request(f"A modality is named twice in {_names(asked)}.", param)


def _entry(plan: Plan, where: str) -> Entry:
    stage, _, port = where.partition(".")
    return Entry(plan.stage(stage), port or None)


def _delivers(edge: EdgePlan, entries: Mapping[str, Entry]) -> bool:
    return any(
        modality in MEDIA_MODALITIES and entry.stage.name == edge.target and entry.port == edge.port
        for modality, entry in entries.items()
    )


def _fed_ports(task: str, entries: Mapping[str, Entry], edges: Iterable[EdgePlan]) -> set[tuple[str, str]]:
    """Return the ports that get input. A port takes one source, since a second source could not be told from the
    first."""
    sources = [(e.target, e.port, f"stage '{e.source}'") for e in edges]
    sources += [
        (entry.stage.name, entry.port, f"input '{modality}'")
        for modality, entry in entries.items()
        if entry.port is not None and modality not in MEDIA_MODALITIES
    ]
    fed: dict[tuple[str, str], str] = {}
    for stage, port, source in sources:
        if (other := fed.setdefault((stage, port), source)) is not source:
            raise invalid_request(
                f"Task '{task}': '{stage}.{port}' takes one source, and both {other} and {source} would feed it.",
                "input",
            )
    return set(fed)


def _adjacency(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for source, target in pairs:
        graph.setdefault(source, set()).add(target)
    return graph


def _closure(start: set[str], graph: Mapping[str, set[str]]) -> set[str]:
    """Return ``start`` and every node that can be reached from it."""
    seen = set(start)
    todo = list(start)
    while todo:
        for following in graph.get(todo.pop(), ()):
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in names) or "none"
