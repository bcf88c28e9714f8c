"""The resolution of a deployment: from a model's name, a deploy file and the command line to a frozen plan."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType

from omni_actors.pipelines.declaration import Pipeline, PipelineFacts
from omni_actors.pipelines.deploy.overlay import (
    Override,
    Setting,
    located,
    peek_overlay,
    peek_overrides,
    read_overlay,
    read_overrides,
)
from omni_actors.pipelines.deploy.schema import Group, settings_schema
from omni_actors.pipelines.deploy.settings import DECLARED, Settings
from omni_actors.pipelines.deploy.template import template_override
from omni_actors.pipelines.limits import (
    with_engine_options,
)
from omni_actors.pipelines.plan import (
    DeploymentLimits,
    Origin,
    Plan,
    PlanError,
)
from omni_actors.pipelines.planning.checkpoint_facts import apply_checkpoint_facts, drop_stages, read_checkpoint_facts
from omni_actors.pipelines.planning.choose import choose
from omni_actors.pipelines.planning.disaggregate import inherited, split, split_stages
from omni_actors.pipelines.planning.edges import edges_of
from omni_actors.pipelines.planning.engines import with_choices
from omni_actors.pipelines.planning.missing import platforms_of
from omni_actors.pipelines.planning.platforms import STAGE_PLATFORMS, find_platforms
from omni_actors.pipelines.planning.sizing import sized
from omni_actors.pipelines.planning.stages import MEDIA_PLATFORM, stages_of
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES
from omni_actors.pipelines.validate import check_declaration, check_tasks
from omni_actors.platforms.select import select

log = logging.getLogger(__name__)

EARLY = {"model": "the argument MODEL", "pipeline": "--pipeline", "platform": "--platform"}
"""Keys of a deploy file that decide which other keys exist → the command-line option for the same setting."""

MEDIA = "omni_actors.media.stage:STAGE"
"""Dotted name of the implicit media stage."""


def resolve(
    model: str | None = None,
    *,
    overlay: Path | None = None,
    overrides: Sequence[str | Override] = (),
    platform: str | None = None,
    served_name: str | None = None,
    pipeline: str | None = None,
    chat_template: Path | None = None,
    revision: str | None = None,
    registry: Registry | None = None,
) -> Plan:
    """Make the plan of a deployment.

    Files and the environment are read; no model code is imported. The weights need not exist yet
    (:func:`~omni_actors.pipelines.planning.missing.missing_weights`).

    Args:
        model: A pipeline's name, a model's folder, the public name of a checkpoint, or ``None`` or ``demo`` for the
            built-in demo.
        overlay: A deploy file.
        overrides: Settings that replace the deploy file's, as ``path=value``.
        platform: The platform of every stage that names no other. Default: the variable ``OMNI_ACTORS_PLATFORM``, then
            the deploy file, then the platform that is detected.
        served_name: The name by which clients request the model; the deploy file's setting is replaced.
        pipeline: The pipeline to serve a folder with. Default: the pipeline for the folder's architecture.
        chat_template: A file for the stage that reads chats by a template.
        revision: The branch, tag or commit of a public checkpoint.
        registry: The known pipelines. Default: the built-in and the installed ones.

    Returns:
        The frozen plan.

    Raises:
        PlanError: The deployment is impossible; the message says what is wrong and where. Other kinds of
            :class:`OmniError` are raised for a wrong environment.

    Example:
        >>> plan = resolve("stub", overrides=["stages.a.replicas=2"], platform="cpu")
        >>> plan.stage("a").replicas, str(plan.provenance["stages.a.replicas"])
        (2, 'command line --set stages.a.replicas=2')
    """
    registry = registry or Registry.installed()
    for override in map(Override.of, overrides):
        if (key := override.assignment.partition("=")[0].strip()) in EARLY:
            raise PlanError(f"{override.typed}: use {EARLY[key]} instead")
    early = {one.path: one for one in peek_overlay(overlay, *EARLY)} if overlay else {}
    choice = choose(model, pipeline, {path: one.value for path, one in early.items()}, overlay, registry, revision)
    folder, model_origin = choice.folder, choice.origin
    said = read_checkpoint_facts(choice.pipeline, Path(folder)) if folder else PipelineFacts()
    family = apply_checkpoint_facts(choice.pipeline, said)
    check_declaration(drop_stages(family, said.lacks))
    family = replace(family, stages=tuple(map(with_engine_options, family.stages)))
    if chat_template is not None:
        overrides = [*overrides, template_override(family, chat_template)]
    chosen = drop_stages(family, said.lacks)
    media = resolve_name(MEDIA) if _has_media(chosen) else None
    own = [*(peek_overlay(overlay, *STAGE_PLATFORMS) if overlay else ()), *peek_overrides(overrides, *STAGE_PLATFORMS)]
    platforms = find_platforms(platform, early.get("platform"), own)
    if media is not None or any(stage.host for stage in chosen.stages):
        platforms.get(MEDIA_PLATFORM, "the media process")
    schema = settings_schema(_settable(family), platforms.all(), media, platforms.overruled)
    listed = [*(read_overlay(overlay, schema) if overlay else ()), *read_overrides(overrides, schema)]
    # A deploy file is for a family: it may have settings of stages or platforms that this deployment lacks.
    if platforms.overruled:
        listed = _within(listed, settings_schema(_settable(family), platforms.all(), media), "nothing runs there")
    if said.lacks:
        effective = settings_schema(_settable(chosen), platforms.all(), media)
        listed = _within(listed, effective, "this checkpoint has no such stage")
    given = {setting.path: setting for setting in listed}
    halved = split_stages(chosen, given)
    settings = Settings(inherited(given, halved), {}, _described(said, folder))
    running = split(chosen, halved)

    settings.provenance["pipeline"] = Origin("model", choice.reason) if choice.reason else DECLARED
    named = settings.given.get("model")
    settings.provenance["model"] = named.origin if named and model is None else model_origin
    own_name = Path(folder).name if folder and chosen.weights is None else chosen.name
    default_name = choice.checkpoint or own_name
    name = settings.get("served_model_name", default_name, model_origin)
    if served_name:
        name = served_name
        settings.provenance["served_model_name"] = Origin("command line", "--served-model-name")
    settings.provenance["platform"] = platforms.origin

    stages = stages_of((*running.stages, *([media] if media else [])), folder, platforms, settings)
    edges = edges_of(running, settings, stages)
    plan = Plan(
        name=chosen.name,
        pipeline=chosen,
        model=folder,
        served_model_name=name,
        platform=platforms.default.name,
        stages=sized(stages, edges),
        edges=edges,
        tasks=MappingProxyType({task.name: task for task in running.tasks}),
        voices=chosen.voices,
        sample_rate=chosen.sample_rate,
        languages=chosen.languages,
        limits=DeploymentLimits(
            **{f.name: settings.get(f"limits.{f.name}", f.default) for f in fields(DeploymentLimits)}
        ),
        provenance=MappingProxyType({**settings.described, **settings.provenance}),
        checkpoint=choice.checkpoint,
        notes=said.notes,
    )
    check_tasks(plan)
    return plan


def _settable(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the options of every engine that may compute its stages."""
    return replace(pipeline, stages=tuple(map(with_choices, pipeline.stages)))


def _within(listed: list[Setting], schema: Group, why: str) -> list[Setting]:
    """Return the settings that a schema has. The others are logged as without effect: WARNING for the command line,
    INFO for a deploy file."""
    kept = []
    for setting in listed:
        try:
            located(schema, tuple(setting.path.split(".")), (), "")
        except PlanError:
            level = logging.WARNING if setting.origin.kind == "command line" else logging.INFO
            log.log(level, "%s: %s: '%s' has no effect", setting.origin, why, setting.path)
        else:
            kept.append(setting)
    return kept


def _described(said: PipelineFacts, folder: str | None) -> dict[str, Origin]:
    """Return the paths of the defaults that came from a folder's facts, with their origin."""
    names = ("voices", "languages", "sample_rate", "speech_fields", "task_types")
    paths = [name for name in names if getattr(said, name) is not None]
    paths += [f"stages.{stage}.options.{key}" for stage, options in said.options.items() for key in options]
    return dict.fromkeys(paths, Origin("model", folder or ""))


def settings_of(plan: Plan) -> Group:
    """Return the keys that can be set of a deployment.

    Args:
        plan: The deployment.
    """
    media = plan.media
    found = platforms_of(plan)
    default = found.pop(plan.platform, None) or select(plan.platform)
    platforms = (default, *found.values())
    return settings_schema(_settable(plan.pipeline), platforms, media.declaration if media else None)


def _has_media(pipeline: Pipeline) -> bool:
    return any(MEDIA_MODALITIES & (task.entries.keys() | task.outputs.keys()) for task in pipeline.tasks)
