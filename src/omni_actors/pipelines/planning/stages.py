"""A plan's stages: the device, engine, options, limits and environment of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.deploy.schema import SAMPLING_DEFAULTS
from omni_actors.pipelines.deploy.settings import DECLARED, DEFAULT, Settings
from omni_actors.pipelines.limits import (
    OTHER_STEP_BUDGET_S,
    STEP_BUDGET_S,
    environment_of,
    limits_of,
)
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import (
    LOOPBACK,
    MEDIA_STAGE,
    Origin,
    PlanError,
    StagePlan,
    stage_path,
)
from omni_actors.pipelines.planning.acceleration import check_acceleration
from omni_actors.pipelines.planning.balancers import balancer_of
from omni_actors.pipelines.planning.devices import RANKS_ENVIRONMENT, devices_of, environments_of
from omni_actors.pipelines.planning.engines import choose_engine, engine_class
from omni_actors.pipelines.planning.parallel import check_strategy
from omni_actors.pipelines.planning.platforms import Platforms
from omni_actors.pipelines.planning.quantization import check_quantization
from omni_actors.pipelines.planning.threads import share_threads, shared_cores
from omni_actors.pipelines.strategy import VLLM, Strategy
from omni_actors.platforms.platform import OmniPlatform, platform_options
from omni_actors.telemetry.opt_out import OPT_OUT

START_TIMEOUT_S = 300.0
COMPILE_BUDGET_S = 600.0

MEDIA_PLATFORM = "cpu"
"""The platform of the media process unless a setting names another, whatever the other stages run on."""

BASE_ENVIRONMENT = {
    **OPT_OUT,
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",  # transformers warns of the omni families' own configs, dozens of times
}
"""Environment of every worker: packages report to nobody, models are local folders, progress goes by frames, and a
worker has one busy thread."""


def stages_of(
    declared: tuple[Stage, ...], folder: str | None, platforms: Platforms, settings: Settings
) -> tuple[StagePlan, ...]:
    placed = {stage.name: _platform(stage, platforms, settings) for stage in declared}
    replicas = {s.name: settings.get(f"{stage_path(s.name)}.replicas", 1) for s in declared}
    if replicas.get(MEDIA_STAGE, 1) != 1:
        # A clip lives in the process that decoded it, and a request may bring several.
        where = settings.where(f"stages.{MEDIA_STAGE}.replicas")
        raise PlanError(f"{where}: stage '{MEDIA_STAGE}' runs in one process and cannot have more replicas")
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
    """Return the platform that the stage names, else the deployment's default. The media process and stages of the
    host compute on no device."""
    path = f"{stage_path(stage.name)}.platform"
    if stage.name == MEDIA_STAGE or stage.host:
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
    check_acceleration(at, stage, platform, options, settings.where)
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
    """Return the default time budget of a step, and its origin."""
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
