"""The one way from a model's name to a frozen Plan: model → pipeline → overlay → strategy → command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from omni_actors.pipelines.declaration import Pipeline, PipelineFacts, Stage
from omni_actors.pipelines.deploy.overlay import (
    Override,
    Setting,
    located,
    peek_overlay,
    peek_overrides,
    read_overlay,
    read_overrides,
)
from omni_actors.pipelines.deploy.schema import SAMPLING_DEFAULTS, Group, settings_schema
from omni_actors.pipelines.deploy.settings import DECLARED, DEFAULT, Settings
from omni_actors.pipelines.deploy.template import template_override
from omni_actors.pipelines.limits import (
    OTHER_STEP_BUDGET_S,
    STEP_BUDGET_S,
    environment_of,
    limits_of,
    with_engine_options,
)
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import (
    LOOPBACK,
    MEDIA_STAGE,
    DeploymentLimits,
    Origin,
    Plan,
    PlanError,
    StagePlan,
    stage_path,
)
from omni_actors.pipelines.planning.balancers import balancer_of
from omni_actors.pipelines.planning.checkpoint_facts import describe, refined, without
from omni_actors.pipelines.planning.choose import choose
from omni_actors.pipelines.planning.devices import RANKS_ENVIRONMENT, devices_of, environments_of
from omni_actors.pipelines.planning.disaggregate import inherited, split, split_stages
from omni_actors.pipelines.planning.edges import edges_of
from omni_actors.pipelines.planning.engines import choose_engine, engine_class, with_choices
from omni_actors.pipelines.planning.parallel import check_strategy
from omni_actors.pipelines.planning.platforms import STAGE_PLATFORMS, Platforms, find_platforms
from omni_actors.pipelines.planning.quantization import check_quantization
from omni_actors.pipelines.planning.sizing import sized
from omni_actors.pipelines.planning.threads import share_threads, shared_cores
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.strategy import VLLM, Strategy
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES
from omni_actors.pipelines.validate import check_declaration, check_tasks
from omni_actors.pipelines.weights.hub import missing_shards
from omni_actors.pipelines.weights.intact import Damage, damage_of
from omni_actors.platforms.platform import OmniPlatform, platform_options
from omni_actors.platforms.select import load, select
from omni_actors.telemetry.opt_out import OPT_OUT

log = logging.getLogger(__name__)

EARLY = {"model": "the argument MODEL", "pipeline": "--pipeline", "platform": "--platform"}
"""Keys of a deploy file that decide which other keys there are; the command line has a word of its own for each."""

START_TIMEOUT_S = 300.0
COMPILE_BUDGET_S = 600.0

MEDIA = "omni_actors.media.stage:STAGE"
"""Dotted name of the implicit media stage."""

MEDIA_PLATFORM = "cpu"
"""Where the media process runs unless it is told otherwise, whatever the other stages run on."""

BASE_ENVIRONMENT = {
    **OPT_OUT,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",  # it warns of what the omni families' own configs say, dozens of times
}
"""The environment of every worker: nothing in it reports to anybody, models are folders by the time it starts, it tells
its progress by frames, and it has one busy thread by design."""


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
    """Everything that a deployment is, from what an operator says.

    ``model`` is a pipeline's name, a model's folder, the public name of a checkpoint, or ``None`` or ``demo`` for the
    built-in demo. ``pipeline`` forces the pipeline that a folder is served by, ``revision`` is the branch, tag or
    commit of a public checkpoint. What ``overlay`` sets is overruled by
    ``overrides`` (``path=value``), and by ``platform`` (else the variable ``OMNI_ACTORS_PLATFORM``) and
    ``served_name``. ``chat_template`` is a file for the stage that reads chats by a template. Weights need not be there
    yet: see :func:`missing_weights`. Reads files and environment, imports no model code. Raises :class:`PlanError` (or
    another :class:`OmniError`) that says what is wrong and where.
    """
    registry = registry or Registry.installed()
    for override in map(Override.of, overrides):
        if (key := override.assignment.partition("=")[0].strip()) in EARLY:
            raise PlanError(f"{override.typed}: use {EARLY[key]} instead")
    early = {one.path: one for one in peek_overlay(overlay, *EARLY)} if overlay else {}
    choice = choose(model, pipeline, {path: one.value for path, one in early.items()}, overlay, registry, revision)
    folder, model_origin = choice.folder, choice.origin
    said = describe(choice.pipeline, Path(folder)) if folder else PipelineFacts()
    family = refined(choice.pipeline, said)
    check_declaration(without(family, said.lacks))
    family = replace(family, stages=tuple(map(with_engine_options, family.stages)))
    if chat_template is not None:
        overrides = [*overrides, template_override(family, chat_template)]
    chosen = without(family, said.lacks)
    media = resolve_name(MEDIA) if _has_media(chosen) else None
    own = [*(peek_overlay(overlay, *STAGE_PLATFORMS) if overlay else ()), *peek_overrides(overrides, *STAGE_PLATFORMS)]
    platforms = find_platforms(platform, early.get("platform"), own)
    if media is not None:
        platforms.get(MEDIA_PLATFORM, "the media process")
    schema = settings_schema(_settable(family), platforms.all(), media, platforms.overruled)
    listed = [*(read_overlay(overlay, schema) if overlay else ()), *read_overrides(overrides, schema)]
    # A deploy file is for a family, whichever of its checkpoints it is used with, and wherever that runs for once.
    if platforms.overruled:
        listed = _within(listed, settings_schema(_settable(family), platforms.all(), media), "nothing runs there")
    if said.lacks:
        effective = settings_schema(_settable(chosen), platforms.all(), media)
        listed = _within(listed, effective, "this checkpoint has no such part")
    given = {setting.path: setting for setting in listed}
    halved = split_stages(chosen, given)
    settings = Settings(inherited(given, halved), {}, _described(said, folder))
    running = split(chosen, halved)

    settings.provenance["pipeline"] = DECLARED
    named = settings.given.get("model")
    settings.provenance["model"] = named.origin if named and model is None else model_origin
    own_name = Path(folder).name if folder and chosen.weights is None else chosen.name
    default_name = choice.checkpoint or own_name
    name = settings.get("served_model_name", default_name, model_origin)
    if served_name:
        name = served_name
        settings.provenance["served_model_name"] = Origin("command line", "--served-model-name")
    settings.provenance["platform"] = platforms.origin

    stages = _stages((*running.stages, *([media] if media else [])), folder, platforms, settings)
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
    )
    check_tasks(plan)
    return plan


def _settable(pipeline: Pipeline) -> Pipeline:
    """The pipeline with all that may be set of its stages, whichever engine is chosen."""
    return replace(pipeline, stages=tuple(map(with_choices, pipeline.stages)))


def _within(listed: list[Setting], schema: Group, why: str) -> list[Setting]:
    """Those settings that the schema has. The others are said to have no effect, loudly if they were typed."""
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
    """The paths that a folder's facts decide."""
    names = ("voices", "languages", "sample_rate", "speech_fields", "task_types")
    paths = [name for name in names if getattr(said, name) is not None]
    paths += [f"stages.{stage}.options.{key}" for stage, options in said.options.items() for key in options]
    return dict.fromkeys(paths, Origin("model", folder or ""))


def settings_of(plan: Plan) -> Group:
    """What can be set of this deployment."""
    media = plan.media
    found = _platforms_of(plan)
    default = found.pop(plan.platform, None) or select(plan.platform)
    platforms = (default, *found.values())
    return settings_schema(_settable(plan.pipeline), platforms, media.declaration if media else None)


def missing_weights(plan: Plan) -> list[str]:
    """The folders and files that stages will load and that are not there, shards that a folder's index names among
    them."""
    wanted = dict.fromkeys(Path(stage.model) for stage in plan.stages if stage.model)
    absent = [path for path in wanted if not path.exists()]
    absent += [shard for path in wanted if path.is_dir() for shard in missing_shards(path)]
    return list(map(str, absent))


def damaged_weights(plan: Plan) -> dict[Path, list[Damage]]:
    """The folders that stages will load and that hold damaged files, as far as a quick look tells
    (:func:`~omni_actors.pipelines.weights.intact.damage_of`)."""
    wanted = {Path(stage.model) for stage in plan.stages if stage.model}
    outermost = sorted(path for path in wanted if not wanted.intersection(path.parents))
    looked = {path: damage_of(path) for path in outermost}
    return {path: found for path, found in looked.items() if found}


def missing_devices(plan: Plan) -> list[str]:
    """For each stage whose platform finds no device here (it was planned for another machine), or something wrong with
    one of the stage's: what it is."""
    platforms = _platforms_of(plan)
    detections = {name: platform.detect() for name, platform in platforms.items()}
    bad = {
        (name, device.name): device.trouble
        for name, platform in platforms.items()
        if detections[name]
        for device in platform.devices()
        if device.trouble
    }
    missing = []
    for stage in plan.stages:
        runs, found = f"stage '{stage.name}' is to run on ", detections[stage.platform]
        if not found:
            named = ", ".join(stage.devices)
            missing.append(f"{runs}{named}: platform '{stage.platform}' finds none here: {found.reason}")
        missing += [
            f"{runs}{device}, which has a fault: {bad[stage.platform, device]}"
            for device in dict.fromkeys(stage.devices)
            if (stage.platform, device) in bad
        ]
    return missing


def _platforms_of(plan: Plan) -> dict[str, OmniPlatform]:
    """Those that its stages run on, made anew: they look at the machine as it is now."""
    return {stage.platform: load(stage.platform_class) for stage in plan.stages}


def _has_media(pipeline: Pipeline) -> bool:
    return any(MEDIA_MODALITIES & (task.entries.keys() | task.outputs.keys()) for task in pipeline.tasks)


def _stages(
    declared: tuple[Stage, ...], folder: str | None, platforms: Platforms, settings: Settings
) -> tuple[StagePlan, ...]:
    placed = {stage.name: _platform(stage, platforms, settings) for stage in declared}
    replicas = {s.name: settings.get(f"{stage_path(s.name)}.replicas", 1) for s in declared}
    if replicas.get(MEDIA_STAGE, 1) != 1:
        # A clip lives in the process that decoded it, and a request may bring several.
        where = settings.where(f"stages.{MEDIA_STAGE}.replicas")
        raise PlanError(f"{where}: stage '{MEDIA_STAGE}' is one process; more replicas of it are not supported")
    fixed = {
        s.name: settings.given[f"{stage_path(s.name)}.threads"].value
        for s in declared
        if f"{stage_path(s.name)}.threads" in settings.given
    }
    weights = {s.name: s.weight for s in declared}
    strategies = {s.name: _strategy(stage_path(s.name), settings) for s in declared}
    processes = {name: count * strategies[name].ranks for name, count in replicas.items()}
    share = partial(share_threads, weights=weights, replicas=processes, fixed=fixed)
    found = []
    for index, stage in enumerate(declared):
        platform = placed[stage.name]
        found.append(
            _stage(index, stage, folder, platform, settings, strategies[stage.name], replicas[stage.name], share)
        )
    return tuple(found)


def _platform(stage: Stage, platforms: Platforms, settings: Settings) -> OmniPlatform:
    """The one that the stage names, else the deployment's; the media process computes on no device."""
    path = f"{stage_path(stage.name)}.platform"
    if stage.name == MEDIA_STAGE:
        name = settings.get(path, MEDIA_PLATFORM, DECLARED)
    else:
        name = settings.get(path, platforms.default.name, platforms.origin)
    return platforms.get(name, f"{settings.where(path)}: stage '{stage.name}'")


def _stage(
    index: int,
    stage: Stage,
    folder: str | None,
    platform: OmniPlatform,
    settings: Settings,
    strategy: Strategy,
    replicas: int,
    share: Callable[[int], Mapping[str, int]],
) -> StagePlan:
    at = stage_path(stage.name)
    by_platform = Origin("platform", platform.name)

    model = _model(at, stage, folder, settings)
    stage, kind = choose_engine(stage, model, platform, settings)
    check_quantization(stage.name, kind, model, platform)
    cores = platform.cores()
    usable = shared_cores(kind, cores)
    shared = f"{cores} cores" if usable == cores else f"{usable} of {cores} cores"
    origin = Origin("platform", f"{platform.name}, {shared} shared by weight")
    threads = settings.get(f"{at}.threads", share(usable)[stage.name], origin)
    engine, announced = engine_class(kind, platform, f"{settings.where(f'{at}.engine')}: stage '{stage.name}'")
    settings.provenance[f"{at}.adapter"] = DECLARED

    values = {
        key: settings.get(f"platforms.{platform.name}.{key}", option.default, by_platform)
        for key, option in platform_options(platform).items()
    }
    dtype = _dtype(at, stage, platform, values, settings)
    options = {
        key: settings.get(f"{at}.options.{key}", option.default, DECLARED) for key, option in stage.options.items()
    }
    sampling = {
        key: settings.get(f"{at}.sampling.{key}", None)
        for key in SAMPLING_DEFAULTS
        if f"{at}.sampling.{key}" in settings.given
    }
    if sampling:
        options["sampling"] = sampling
    check_strategy(at, stage, kind, strategy, model, platform, options, settings.where)
    limits = {key: settings.get(f"{at}.limits.{key}", limit.default) for key, limit in limits_of(stage.engine).items()}
    usual = platform.usual_devices(index, threads, values)
    devices = devices_of(at, platform, strategy, replicas, settings, usual)
    base = BASE_ENVIRONMENT | environment_of(kind) | (RANKS_ENVIRONMENT if strategy.ranks > 1 else {})
    own = settings.get(f"{at}.environment", {}, by_platform)
    ours = strategy.ranks > 1 and kind != VLLM
    environments = environments_of(
        devices,
        strategy.ranks,
        () if ours else platform.visibility,
        lambda device: base | platform.worker_environment(device, threads, values) | own,
    )
    balancer, balancer_class = balancer_of(at, stage, options, settings)
    return StagePlan(
        name=stage.name,
        index=index,
        declaration=stage,
        engine=engine,
        adapter=stage.adapter,
        model=model,
        platform=platform.name,
        devices=devices,
        dtype=dtype,
        threads=threads,
        replicas=replicas,
        balancer=balancer,
        strategy=strategy,
        options=MappingProxyType(options),
        limits=MappingProxyType(limits),
        start_timeout_s=settings.get(f"{at}.start_timeout_s", START_TIMEOUT_S),
        step_budget_s=settings.get(f"{at}.step_budget_s", *_step_budget(stage)),
        compile_budget_s=settings.get(f"{at}.compile_budget_s", COMPILE_BUDGET_S),
        environments=tuple(map(MappingProxyType, environments)),
        host=settings.get(f"{at}.host", LOOPBACK),
        worker_devices=tuple(map(platform.worker_device, devices)),
        platform_class=f"{type(platform).__module__}:{type(platform).__qualname__}",
        platform_options=MappingProxyType(values),
        collectives=platform.collectives if ours else "",
        transports=tuple(platform.transports),
        balancer_class=balancer_class,
        announced=announced,
    )


def _strategy(at: str, settings: Settings) -> Strategy:
    return Strategy(**{f.name: settings.get(f"{at}.strategy.{f.name}", 1) for f in fields(Strategy)})


def _step_budget(stage: Stage) -> tuple[float, Origin]:
    """A step's budget when nobody sets it, and whose word that is."""
    if stage.step_budget_s is not None:
        return stage.step_budget_s, DECLARED
    return STEP_BUDGET_S.get(stage.engine, OTHER_STEP_BUDGET_S), DEFAULT


def _dtype(at: str, stage: Stage, platform: OmniPlatform, options: Mapping[str, Any], settings: Settings) -> str:
    possible = [dtype for dtype in platform.dtypes if dtype in (stage.dtypes or platform.dtypes)]
    if not possible:
        raise PlanError(
            f"stage '{stage.name}' computes in {', '.join(stage.dtypes)}, which platform '{platform.name}' does not"
        )
    usual = platform.usual_dtype(options)
    usual = usual if usual in possible else possible[0]
    dtype: str = settings.get(f"{at}.dtype", usual, Origin("platform", platform.name))
    if dtype not in possible:
        raise PlanError(
            f"{settings.where(f'{at}.dtype')}: stage '{stage.name}' does not compute in '{dtype}' on platform "
            f"'{platform.name}'; {nearest(dtype, possible)}"
        )
    return dtype


def _model(at: str, stage: Stage, folder: str | None, settings: Settings) -> str | None:
    declared = str(Path(folder, stage.model)) if folder and stage.name != MEDIA_STAGE else None
    path = settings.get(f"{at}.model", declared, DECLARED)
    return str(Path(path).expanduser().absolute()) if path else None
