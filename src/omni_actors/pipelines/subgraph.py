"""Which part of a plan one request needs.

The active stages are the ancestors of the final stages (those that emit the wanted modalities), as far as they are
reachable from where the request's inputs enter. Everything here is pure and made of the plan alone: the result can be
kept for as long as the plan.
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
"""Input modalities that the media stage decodes and delivers over an edge: one for all that enter at the same port."""

Key = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an input modality enters. ``port`` is ``None`` when it comes with the parameters."""

    stage: StagePlan
    port: str | None


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage's part in a request.

    ``ports`` are those that will be fed, by an active edge or from outside (an entry). ``visible`` says that the
    client wants the stage's output. ``sections`` are the parameter sections that the stage reads. ``tcp_inputs`` are
    those of its ``inputs`` that come by TCP.
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
    """What one request needs. ``parts`` are in topological order: submit in reverse, consumers first."""

    task: Task
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[StagePart, ...]
    edges: tuple[EdgePlan, ...]
    entries: Mapping[str, Entry]
    """By input modality."""
    finals: tuple[StagePlan, ...]
    """The request is complete when all of these are done."""
    sections: frozenset[str]
    """The parameter sections that any of its stages reads."""


def subgraph(plan: Plan, task: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Subgraph:
    """The part of ``plan`` that ``task`` needs to make ``outputs`` of ``inputs``.

    Raises the client's mistake (400) with ``param`` ``task``, ``input`` or ``modalities`` for what the plan cannot do,
    so that nothing asked for is dropped in silence. The plan keeps what was made; it only ever holds valid
    combinations, which are few.
    """
    kept: dict[Key, Subgraph] = plan.subgraphs
    key = (task, inputs, outputs)
    if (made := kept.get(key)) is None:
        made = kept[key] = _make(plan, task, inputs, outputs)
    return made


def restricted(plan: Plan, needed: Subgraph) -> Plan:
    """The plan of a deployment that only ever answers requests of this one shape: the other stages do not start.

    The media stage stays where media come in or go out. Threads stay as they were shared.
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
            raise invalid_request(f"Input '{modality}' has no part in making {_names(outputs)}.", "input")

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
    """The ports that get input, each from one source: a port with two could not tell whose end it saw."""
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
    """``start`` and everything that can be reached from it."""
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
