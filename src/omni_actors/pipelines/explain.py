"""Every value of a plan with its origin, as text for a terminal and as builtins for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pkgutil import resolve_name
from typing import Any

from rich.console import Group as Rows
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from omni_actors.pipelines.deploy.schema import BUDGETS_DOC, Group, Leaf
from omni_actors.pipelines.limits import limits_of
from omni_actors.pipelines.plan import DeploymentLimits, EdgePlan, Origin, Plan, StagePlan, edge_path, stage_path
from omni_actors.pipelines.planning.edges import DEVICE, transport_between
from omni_actors.pipelines.planning.missing import missing_weights
from omni_actors.pipelines.strategy import STRATEGY_DOC
from omni_actors.platforms.platform import platform_options

HOST = "cpu"
"""The platform whose device memory is the host's memory."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of a plan. ``path`` is the value's name in a deploy file and ``--set``."""

    path: str
    value: Any
    origin: Origin
    doc: str = ""


def facts(plan: Plan) -> list[Fact]:
    """Return every value of a plan in reading order: the deployment, its stages, its edges, its limits."""
    return [
        Fact(path, value, plan.provenance.get(path, Origin("declaration")), doc) for path, value, doc in _values(plan)
    ]


def as_builtins(plan: Plan) -> dict[str, Any]:
    """Return a plan as builtins: stages, edges and tasks, and the facts by path."""
    return {
        "pipeline": plan.name,
        "served_model_name": plan.served_model_name,
        "model": plan.model,
        "checkpoint": plan.checkpoint,
        "missing_weights": missing_weights(plan),
        "notes": list(plan.notes),
        "stages": [stage.name for stage in plan.stages],
        "edges": [{"from": e.source, "to": f"{e.target}.{e.port}", "kind": e.kind} for e in plan.edges],
        "tasks": {
            task.name: {"inputs": dict(task.entries), "outputs": dict(task.outputs)} for task in plan.tasks.values()
        },
        "values": {
            fact.path: {"value": _plain(fact.value), "origin": fact.origin.kind, "where": fact.origin.where}
            for fact in facts(plan)
        },
    }


def as_text(plan: Plan) -> RenderableType:
    """Return a plan for a terminal: the graph, the tasks, then a table of values per stage, edge and group."""
    parts: list[RenderableType] = [
        Text.assemble((plan.served_model_name, "bold"), f"  pipeline {plan.name} on {plan.platform}"),
        Text(plan.pipeline.doc, style="dim"),
        *_absent(plan),
        *(Text(note) for note in plan.notes),
        Text(),
        _graph(plan),
        Text(),
        _tasks(plan),
        Text(),
        _overview(plan),
    ]
    groups: dict[str, list[Fact]] = {}
    for fact in facts(plan):
        head, _, rest = fact.path.partition(".")
        title = {
            "stages": f"stage {rest.split('.')[0]}",
            "platforms": f"options of platform {rest.split('.')[0]}",
            "edges": "edges",
            "limits": "limits of the deployment",
        }
        groups.setdefault(title.get(head, "deployment"), []).append(fact)
    for group, rows in groups.items():
        parts += [Text(), _table(group, rows)]
    return Rows(*parts)


def settings_builtins(schema: Group) -> dict[str, str]:
    """Return what can be set.

    Args:
        schema: The keys of a deployment.

    Returns:
        Dotted path → the meaning of the setting, with its aliases.
    """
    return {path: _meaning(leaf) for path, leaf in _leaves(schema, "")}


def settings_text(schema: Group) -> RenderableType:
    """Return what can be set as a table for a terminal."""
    table = Table("setting", "meaning", box=None, pad_edge=False, header_style="bold")
    for path, leaf in _leaves(schema, ""):
        table.add_row(path, Text(_meaning(leaf)))
    return table


def _meaning(leaf: Leaf) -> str:
    return f"{leaf.doc} Also: {', '.join(leaf.aliases)}." if leaf.aliases else leaf.doc


def _leaves(group: Group, above: str) -> Iterator[tuple[str, Leaf]]:
    for key, node in group.keys.items():
        if isinstance(node, Group):
            yield from _leaves(node, f"{above}{key}.")
        else:
            yield f"{above}{key}", node


def _values(plan: Plan) -> Iterator[tuple[str, Any, str]]:
    yield "pipeline", plan.name, ""
    yield "model", plan.model, "Folder of the weights."
    yield "served_model_name", plan.served_model_name, "Name of the model for clients."
    yield "platform", plan.platform, ""
    yield "sample_rate", plan.sample_rate, "Sample rate of the output audio, in Hz."
    yield "voices", list(plan.voices), ""
    yield "languages", list(plan.languages), ""
    if plan.pipeline.speech_fields is not None:
        yield "speech_fields", list(plan.pipeline.speech_fields), "Fields that a speech request may have."
    if plan.pipeline.task_types:
        yield (
            "task_types",
            list(plan.pipeline.task_types),
            "Ways of choosing a voice that this checkpoint was made for.",
        )
    for stage in plan.stages:
        yield from _stage_values(stage)
    yield from _platform_values(plan)
    for edge in plan.edges:
        at = edge_path(edge.source, edge.target, edge.port)
        for name in ("source", "kind", "mode", "capacity", "bridge", "connector", "on_death"):
            yield f"{at}.{name}", getattr(edge, name), _travels(plan, edge) if name == "connector" else ""
    docs = DeploymentLimits.docs()
    for name, value in asdict(plan.limits).items():
        yield f"limits.{name}", value, docs[name]


def _travels(plan: Plan, edge: EdgePlan) -> str:
    """Return a sentence about the copies of a payload on an edge; empty where there is nothing to tell."""
    source, target = plan.stage(edge.source), plan.stage(edge.target)
    if edge.connector == DEVICE:
        kind = transport_between(source, target)
        return f"Tensors stay on the device ({kind}); if the other end cannot open them, they go through shared memory."
    if edge.kind == "text":
        return ""
    copies = ["one from its device"] if source.platform != HOST else []
    copies += ["one to the other's"] if target.platform != HOST else []
    return f"What a device computes is copied through the host: {' and '.join(copies)}." if copies else ""


def _platform_values(plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """Yield the options of the platforms. All stages on one platform share them."""
    for stage in {stage.platform: stage for stage in plan.stages}.values():
        options = platform_options(resolve_name(stage.platform_class))
        for key, value in stage.platform_options.items():
            yield f"platforms.{stage.platform}.{key}", value, options[key].doc if key in options else ""


def _stage_values(stage: StagePlan) -> Iterator[tuple[str, Any, str]]:
    at = stage_path(stage.name)
    nested = ("options", "limits", "strategy", "platform_options")
    for item in fields(StagePlan):
        if item.name in ("name", "index", "declaration", "worker_devices", "collectives", "transports", *nested):
            continue
        if item.name == "environments":
            yield f"{at}.environment", _environment(stage), ""
        else:
            yield f"{at}.{item.name}", getattr(stage, item.name), BUDGETS_DOC.get(item.name, "")
    for name, degree in stage.strategy.degrees().items():
        yield f"{at}.strategy.{name}", degree, STRATEGY_DOC[name]
    if stage.strategy.ranks > 1:
        yield f"{at}.layout", _layout(stage), "The device of each rank, and the rank's place in its groups."
    options = stage.declaration.options
    for name, value in stage.options.items():
        if name == "sampling":
            for key, chosen in value.items():
                yield f"{at}.sampling.{key}", chosen, ""
        else:
            yield f"{at}.options.{name}", value, options[name].doc if name in options else ""
    docs = limits_of(stage.declaration.engine)
    for name, value in stage.limits.items():
        yield f"{at}.limits.{name}", value, docs[name].doc


def _layout(stage: StagePlan) -> dict[str, str]:
    """Return the device of each rank, and the rank's place along each axis with more than one place."""
    axes = [axis for axis, degree in stage.strategy.degrees().items() if degree > 1]
    return {
        f"{stage.name}#{replica} rank {rank.index}": f"{rank.device}, "
        + ", ".join(f"{axis} {rank.place[axis]}" for axis in axes)
        for replica in range(stage.replicas)
        for rank in stage.layout_of(replica).ranks
    }


def _environment(stage: StagePlan) -> dict[str, Any]:
    """Return the environment of the stage's workers, or by device where the workers' environments differ."""
    first, *others = map(dict, stage.environments)
    if all(other == first for other in others):
        return first
    return {device: dict(found) for device, found in zip(stage.devices, stage.environments, strict=True)}


def _absent(plan: Plan) -> list[Text]:
    absent = missing_weights(plan)
    if not absent:
        return []
    what = "the weights are not on this machine" if plan.checkpoint else "weights are missing"
    more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    return [Text(f"Planned by what the family declares: {what} ({absent[0]}{more}).", style="yellow")]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _graph(plan: Plan) -> Text:
    lines = []
    for edge in plan.edges:
        how = f"{edge.kind}, {edge.mode}" + (f", {edge.bridge.rpartition(':')[2]}" if edge.bridge else "")
        lines.append(f"{edge.source} → {edge.target}.{edge.port}  ({how})")
    return Text("\n".join(lines) or "one stage, no edges")


def _tasks(plan: Plan) -> Table:
    table = Table("task", "takes", "gives", box=None, pad_edge=False, header_style="bold")
    for task in plan.tasks.values():
        takes = ", ".join(f"{modality} at {where}" for modality, where in task.entries.items())
        table.add_row(task.name, takes, ", ".join(f"{modality} of {where}" for modality, where in task.outputs.items()))
    return table


def _overview(plan: Plan) -> Table:
    columns = ("stage", "engine", "platform", "on", "threads", "replicas")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for stage in plan.stages:
        engine = stage.engine.rpartition(":")[2]
        devices = ", ".join(stage.devices)
        table.add_row(stage.name, engine, stage.platform, devices, str(stage.threads), str(stage.replicas))
    return table


def _table(title: str, rows: list[Fact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    table.add_column("value", no_wrap=True)
    table.add_column("is", overflow="fold")
    table.add_column("from", overflow="fold", style="cyan")
    table.add_column("meaning", style="dim")
    prefix = f"stages.{title.removeprefix('stage ')}." if title.startswith("stage ") else ""
    for fact in rows:
        # As Text: square brackets in a plain str would be markup.
        table.add_row(fact.path.removeprefix(prefix), _shown(fact.value), Text(str(fact.origin)), Text(fact.doc))
    return table


def _shown(value: Any) -> Text:
    if isinstance(value, Mapping):
        return Text("\n".join(f"{k}={v}" for k, v in value.items()) or "none")
    if isinstance(value, list | tuple):
        return Text(", ".join(map(str, value)) or "none")
    return Text("none" if value is None or value == "" else str(value))
