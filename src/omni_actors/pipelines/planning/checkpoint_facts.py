"""The facts of one checkpoint's folder, applied to its family's declaration."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omni_actors.pipelines.declaration import Pipeline, PipelineFacts, Task
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import PlanError
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.options import with_defaults

_VALUES = ("voices", "languages", "sample_rate", "speech_fields", "task_types", "tasks")


def read_checkpoint_facts(pipeline: Pipeline, folder: Path) -> PipelineFacts:
    """Read the facts of a checkpoint by the family's own function.

    Args:
        pipeline: The family's declaration.
        folder: The checkpoint's folder.

    Returns:
        The facts; no facts where the family has no function, or where the folder does not exist and the family has no
        weights of its own.

    Raises:
        PlanError: The family's function fails on the folder.
    """
    if pipeline.describe is None or (pipeline.weights is None and not folder.is_dir()):
        return PipelineFacts()
    try:
        found = resolve_name(pipeline.describe)(folder)
    except OmniError:
        raise
    except Exception as error:
        raise PlanError(f"pipeline '{pipeline.name}' cannot read the folder '{folder}': {error!r}") from error
    if not isinstance(found, PipelineFacts):
        raise PlanError(f"pipeline '{pipeline.name}': {pipeline.describe} returned no PipelineFacts")
    return found


def apply_checkpoint_facts(pipeline: Pipeline, facts: PipelineFacts) -> Pipeline:
    """Return the pipeline of one checkpoint, still with the stages that the checkpoint lacks (:func:`drop_stages`).

    Args:
        pipeline: The family's declaration.
        facts: What the checkpoint's folder says.

    Raises:
        PlanError: The facts name a stage or an option that is not declared.
    """
    stages = {stage.name: stage for stage in pipeline.stages}
    for name in (*facts.lacks, *facts.options):
        if name not in stages:
            raise PlanError(f"pipeline '{pipeline.name}' has no stage '{name}'; {nearest(name, stages)}")
    for name, options in facts.options.items():
        if unknown := sorted(options.keys() - stages[name].options.keys()):
            known = nearest(unknown[0], stages[name].options)
            raise PlanError(f"pipeline '{pipeline.name}': stage '{name}' has no option '{unknown[0]}'; {known}")
        stages[name] = replace(stages[name], options=with_defaults(stages[name].options, **options))
    values: dict[str, Any] = {name: getattr(facts, name) for name in _VALUES if getattr(facts, name) is not None}
    return replace(pipeline, stages=tuple(stages.values()), **values)


def drop_stages(pipeline: Pipeline, lacking: Collection[str]) -> Pipeline:
    """Return the pipeline of a checkpoint without the stages that the checkpoint lacks
    (:attr:`PipelineFacts.lacks`)."""
    if not lacking:
        return pipeline
    tasks = []
    for task in pipeline.tasks:
        entries = {m: where for m, where in task.entries.items() if where.split(".", 1)[0] not in lacking}
        outputs = {m: where for m, where in task.outputs.items() if where not in lacking}
        if entries and outputs:
            tasks.append(Task(task.name, entries, outputs))
    return replace(
        pipeline,
        stages=tuple(stage for stage in pipeline.stages if stage.name not in lacking),
        edges=tuple(e for e in pipeline.edges if e.source not in lacking and e.stage not in lacking),
        tasks=tuple(tasks),
    )
