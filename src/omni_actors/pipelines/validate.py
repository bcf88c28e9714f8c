"""Checks of a pipeline's declaration, made once when a deployment is resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.parameters import parameter_faults
from omni_actors.pipelines.plan import MEDIA_STAGE, Plan, PlanError
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES, subgraph
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.options import Option


def check_declaration(pipeline: Pipeline) -> None:
    """Check a declaration.

    Args:
        pipeline: The declaration.

    Raises:
        PlanError: The declaration has faults; the message has one line for each.
    """
    if faults := list(_faults(pipeline)):
        raise PlanError("\n".join(f"pipeline '{pipeline.name}': {fault}" for fault in faults))


def check_tasks(plan: Plan) -> None:
    """Check that every input and output of every task is useful in some combination.

    Args:
        plan: The whole deployment, since the media stage counts.

    Raises:
        PlanError: An output can never be made, or an input leads to no output.
    """
    faults = []
    for task in plan.tasks.values():
        served: set[str] = set()
        used: set[str] = set()
        reasons: dict[str, str] = {}
        for inputs in _subsets(task.entries):
            for output in task.outputs:
                try:
                    subgraph(plan, task.name, inputs, (output,))
                except OmniError as error:
                    reasons.setdefault(output, error.info.message)
                else:
                    served.add(output)
                    used.update(inputs)
        faults += [
            f"task '{task.name}': output '{output}' cannot be reached: {reasons[output]}"
            for output in task.outputs
            if output not in served
        ]
        if len(served) == len(task.outputs):
            faults += [
                f"task '{task.name}': input '{modality}' leads to no output"
                for modality in task.entries
                if modality not in used
            ]
    if faults:
        raise PlanError("\n".join(f"pipeline '{plan.name}': {fault}" for fault in faults))


def _faults(pipeline: Pipeline) -> Iterator[str]:
    stages = {stage.name: stage for stage in pipeline.stages}
    if not stages:
        yield "it has no stage"
    for name in _twice(stage.name for stage in pipeline.stages):
        yield f"two stages are called '{name}'"
    for name in _twice(task.name for task in pipeline.tasks):
        yield f"two tasks are called '{name}'"
    for stage in pipeline.stages:
        yield from _stage_faults(stage)
    sound = True
    for edge in pipeline.edges:
        for fault in _edge_faults(edge, stages):
            sound = False
            yield fault
    for target in _twice(edge.target for edge in pipeline.edges):
        yield f"two edges lead into '{target}'; a port takes only one"
    if sound:
        graph: dict[str, list[str]] = {name: [] for name in stages}
        for edge in pipeline.edges:
            graph[edge.stage].append(edge.source)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            yield f"its edges form a cycle: {' → '.join(error.args[1])}"
    yield from parameter_faults(pipeline)
    if not pipeline.tasks:
        yield "it has no task, so it can serve no request"
    for task in pipeline.tasks:
        yield from _task_faults(task, stages)


def _stage_faults(stage: Stage) -> Iterator[str]:
    if not stage.name.isidentifier():
        yield f"stage name '{stage.name}' is not an identifier"
    if stage.name == MEDIA_STAGE:
        yield f"a stage must not be called '{MEDIA_STAGE}', which is the built-in stage"
    if stage.separable and stage.engine != "autoregressive":
        yield f"stage '{stage.name}': only an autoregressive stage is separable"
    if stage.weight < 0:
        yield f"stage '{stage.name}': its weight is negative"
    for name in _twice(port.name for port in stage.ports):
        yield f"stage '{stage.name}': two ports are called '{name}'"
    for name in sorted(set(stage.input_limits.values()) - stage.options.keys()):
        yield f"stage '{stage.name}': input_limits name '{name}', which is none of the stage's options"
    for name, option in stage.options.items():
        if not isinstance(option, Option):
            yield f"stage '{stage.name}': option '{name}' is {type(option).__name__}, not an Option"
        elif option.choices and option.default is not None and option.default not in option.choices:
            yield f"stage '{stage.name}': option '{name}' is {option.default!r} by default, none of its choices"
        elif option.default is None and option.type is None:
            yield f"stage '{stage.name}': option '{name}' is None by default; its type must be given"
    for alias in _twice(name for names in _option_names(stage) for name in names):
        yield f"stage '{stage.name}': two options are called '{alias}'"


def _option_names(stage: Stage) -> Iterator[tuple[str, ...]]:
    options = ((name, option) for name, option in stage.options.items() if isinstance(option, Option))
    return ((name, *option.aliases) for name, option in options)


def _edge_faults(edge: Edge, stages: dict[str, Stage]) -> Iterator[str]:
    label = f"edge '{edge.source} → {edge.target}'"
    if edge.source not in stages:
        yield f"{label}: there is no stage '{edge.source}'; {nearest(edge.source, stages)}"
    if edge.capacity < 1:
        yield f"{label}: capacity must be at least 1"
    port = yield from _port(label, edge.target, stages)
    if port is not None and edge.bridge is None and edge.kind != port.kind:
        yield (
            f"{label}: it carries '{edge.kind}', the port takes '{port.kind}', and no bridge turns one into the other"
        )
    if port is not None and edge.mode == "chunk" and port.mode == "full":
        yield f"{label}: the edge hands on pieces, and the port takes whole inputs only"


def _task_faults(task: Task, stages: dict[str, Stage]) -> Iterator[str]:
    if not task.entries or not task.outputs:
        yield f"task '{task.name}' needs at least one entry and one output"
    for modality, where in task.entries.items():
        label = f"task '{task.name}', input '{modality}'"
        if "." in where:
            port = yield from _port(label, where, stages)
            if port is not None and modality in MEDIA_MODALITIES and port.kind not in _media_kinds(modality):
                kinds = " or ".join(f"'{kind}'" for kind in _media_kinds(modality))
                yield f"{label}: decoded {modality} is of kind {kinds}, '{where}' takes '{port.kind}'"
        elif where not in stages:
            yield f"{label}: there is no stage '{where}'; {nearest(where, stages)}"
        elif modality in MEDIA_MODALITIES:
            yield f"{label}: media are delivered to a port; name a port of '{where}' as '{where}.PORT'"
    if len(places := {where for modality, where in task.entries.items() if modality in MEDIA_MODALITIES}) > 1:
        named = ", ".join(f"'{place}'" for place in sorted(places))
        yield f"task '{task.name}': a request's media are delivered together, to one port; not to {named}"
    for modality, where in task.outputs.items():
        label = f"task '{task.name}', output '{modality}'"
        if where not in stages:
            yield f"{label}: there is no stage '{where}'; {nearest(where, stages)}"
        elif stages[where].emits != modality:
            yield f"{label}: stage '{where}' emits {stages[where].emits or 'nothing'} that a client may see"


def _media_kinds(modality: str) -> tuple[str, ...]:
    """Return the kinds of ports that take a modality: ``media`` takes every modality, ``pcm`` only audio."""
    return ("pcm", "media") if modality == "audio" else ("media",)


def _port(label: str, where: str, stages: dict[str, Stage]) -> Generator[str, None, Port | None]:
    """Yield the faults of ``stage.port``. The value of ``yield from`` is the port, or ``None``."""
    name, _, wanted = where.partition(".")
    if name not in stages:
        yield f"{label}: there is no stage '{name}'; {nearest(name, stages)}"
        return None
    ports = {port.name: port for port in stages[name].ports}
    if wanted not in ports:
        yield f"{label}: stage '{name}' has no port '{wanted}'; {nearest(wanted, ports)}"
        return None
    return ports[wanted]


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _subsets(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    names = tuple(names)
    for size in range(1, len(names) + 1):
        yield from combinations(names, size)
