"""Prefill/decode disaggregation: one declared stage becomes two stages with a pool each.

A deploy file that sets anything below ``stages.NAME.prefill`` splits the stage. The prefill half computes prompts, and
has the stage's ports and entries. The decode half keeps the stage's name, its output, and the edges behind it; its only
input is an edge of kind ``kv`` with the KV cache of the prompt. Both halves run the same engine, adapter and model, and
learn their half from the option :data:`ROLE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage
from omni_actors.pipelines.deploy.overlay import Setting
from omni_actors.pipelines.plan import PREFILL, PlanError
from omni_actors.protocol.options import Option

ROLE = "role"
"""The option by which an engine learns its half: ``prefill`` or ``decode``."""

PORT = Port("kv", "kv", mode="chunk", doc="What the prompt's computation left behind.")

OWN = frozenset({"replicas", "threads"})
"""The settings that the prefill half does not inherit from the stage."""


def split_stages(pipeline: Pipeline, given: Mapping[str, Setting]) -> tuple[str, ...]:
    """Return the names of the stages that settings split.

    Args:
        pipeline: The pipeline.
        given: The settings by path.

    Raises:
        PlanError: A setting names the edge between the halves of a stage that is not split.
    """
    found: list[str] = []
    for stage in pipeline.stages:
        name, between = stage.name, f"edges.{stage.name}.{PORT.name}."
        if any(path.startswith(f"stages.{name}.prefill.") for path in given):
            found.append(name)
        elif stage.separable and (idle := [s for path, s in given.items() if path.startswith(between)]):
            where = f"{idle[0].origin}: stage '{name}' has no prefill pool"
            raise PlanError(f"{where}; stages.{name}.prefill.replicas=1 gives it one")
    return tuple(found)


def split(pipeline: Pipeline, names: Iterable[str]) -> Pipeline:
    """Return the pipeline with some stages split in two halves each."""
    for name in names:
        pipeline = _split(pipeline, name)
    return pipeline


def inherited(given: Mapping[str, Setting], names: Iterable[str]) -> dict[str, Setting]:
    """Return the settings with those that prefill halves inherit from their stages: all but :data:`OWN`, sampling, and
    what is set for the half itself.

    Args:
        given: The settings by path.
        names: The split stages.

    Raises:
        PlanError: A split stage is set to an engine that cannot be split.
    """
    found = dict(given)
    for name in names:
        above, below = f"stages.{name}.", f"stages.{name}.prefill."
        engine = given.get(f"{above}engine")
        if engine is not None and engine.value not in ("autoregressive", "torch", "auto"):
            why = f"is split into prefill and decode, which engine '{engine.value}' does not support"
            raise PlanError(f"{engine.origin}: stage '{name}' {why}")
        said = {path.removeprefix(below) for path in given if path.startswith(below)}
        if said & {"device", "devices"}:
            said |= {"device", "devices"}
        for path, setting in given.items():
            key = path.removeprefix(above)
            own = key in said | OWN or key.startswith(("prefill.", "sampling."))
            if path.startswith(above) and not own:
                found[below + key] = replace(setting, path=below + key)
    return found


def _split(pipeline: Pipeline, name: str) -> Pipeline:
    halves: list[Stage] = []
    for stage in pipeline.stages:
        if stage.name != name:
            halves.append(stage)
            continue
        first, second = _with_role(stage, "prefill"), _with_role(stage, "decode")
        halves.append(replace(first, name=name + PREFILL, emits=None, doc=f"Computes the prompts of stage {name}."))
        halves.append(replace(second, ports=(PORT,)))
    edges = [replace(e, target=f"{name}{PREFILL}.{e.port}") if e.stage == name else e for e in pipeline.edges]
    # One payload at a time: the first payload is a query, and its credit is the reply.
    edges.append(Edge(name + PREFILL, f"{name}.{PORT.name}", PORT.kind, mode="chunk", capacity=1))
    tasks = [replace(t, entries={m: _entry(where, name) for m, where in t.entries.items()}) for t in pipeline.tasks]
    return replace(pipeline, stages=tuple(halves), edges=tuple(edges), tasks=tuple(tasks))


def _with_role(stage: Stage, role: str) -> Stage:
    return replace(stage, options={**stage.options, ROLE: Option(role, "Which half of a split stage this is.")})


def _entry(where: str, name: str) -> str:
    stage, separator, port = where.partition(".")
    return f"{name}{PREFILL}{separator}{port}" if stage == name else where
