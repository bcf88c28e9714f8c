"""Prefill and decode apart: one declared stage becomes two, each with a pool of its own.

A deploy file that sets anything below ``stages.NAME.prefill`` splits the stage. Its first half computes prompts: it
takes over the stage's ports and entries. Its second half keeps the stage's name, its output, and whatever that leads
to; all it gets is an edge of kind ``kv``, which carries what the prompt's computation left behind. Both halves run the
same engine, adapter and model, and know their part by the option :data:`ROLE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage
from omni_actors.pipelines.deploy.overlay import Setting
from omni_actors.pipelines.plan import PREFILL, PlanError
from omni_actors.protocol.options import Option

ROLE = "role"
"""The option that tells an engine its half: ``prefill`` or ``decode``."""

PORT = Port("kv", "kv", mode="chunk", doc="What the prompt's computation left behind.")

OWN = frozenset({"replicas", "threads"})
"""What the first half does not take over from the stage unless it is said of itself."""


def split_stages(pipeline: Pipeline, given: Mapping[str, Setting]) -> tuple[str, ...]:
    """The stages that these settings (by path) split. Raises :class:`PlanError` for what is said of an edge between
    the halves of a stage that has none."""
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
    """The pipeline with these stages in two halves."""
    for name in names:
        pipeline = _split(pipeline, name)
    return pipeline


def inherited(given: Mapping[str, Setting], names: Iterable[str]) -> dict[str, Setting]:
    """The settings, and for each split stage those that its first half takes over from it: all that is not said of the
    half itself, but for :data:`OWN` and sampling. Raises :class:`PlanError` for an engine that has no halves."""
    found = dict(given)
    for name in names:
        above, below = f"stages.{name}.", f"stages.{name}.prefill."
        engine = given.get(f"{above}engine")
        if engine is not None and engine.value not in ("autoregressive", "torch", "auto"):
            raise PlanError(f"{engine.origin}: stage '{name}' is split, which engine '{engine.value}' cannot do")
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
    # One payload at a time: the first is a question, and its credit is the answer.
    edges.append(Edge(name + PREFILL, f"{name}.{PORT.name}", PORT.kind, mode="chunk", capacity=1))
    tasks = [replace(t, entries={m: _entry(where, name) for m, where in t.entries.items()}) for t in pipeline.tasks]
    return replace(pipeline, stages=tuple(halves), edges=tuple(edges), tasks=tuple(tasks))


def _with_role(stage: Stage, role: str) -> Stage:
    return replace(stage, options={**stage.options, ROLE: Option(role, "Which half of a split stage this is.")})


def _entry(where: str, name: str) -> str:
    stage, separator, port = where.partition(".")
    return f"{name}{PREFILL}{separator}{port}" if stage == name else where
