"""The choice of a stage's engine where two are possible: this project's own engine, with torch, or vLLM.

The command line decides, then the deploy file. Without either (``auto``), vLLM computes the stage if the platform has
an engine for vLLM, a vLLM built for the platform is installed and knows the model's architecture, and no setting needs
the other engine. The installed vLLM is examined by its files; neither vLLM nor torch is imported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.deploy.schema import option_leaf
from omni_actors.pipelines.deploy.settings import DECLARED, Settings
from omni_actors.pipelines.extensions import ENGINES
from omni_actors.pipelines.limits import joined, options_of, with_engine_options
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import Origin, PlanError, stage_path
from omni_actors.pipelines.planning.disaggregate import ROLE
from omni_actors.pipelines.strategy import VLLM
from omni_actors.platforms.platform import OmniPlatform, PlatformError
from omni_actors.platforms.versions import ALIASES

AUTO, TORCH = "auto", "torch"

DISTRIBUTIONS = ("vllm", ALIASES["vllm"])
"""Names of vLLM's distributions: vLLM itself, and the build for CPUs alone."""

_REGISTRY = "model_executor/models/registry.py"
_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
"""vLLM's file with the architectures that write text, and the names of the tables in the file."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The vLLM of this machine. ``build`` is the local part of its version (``cpu``, ``cu130``, or empty)."""

    version: str
    build: str
    folder: Path


def installed(path: Sequence[str] | None = None) -> Installed | None:
    """Find the installed vLLM without importing it.

    Args:
        path: Folders to look in; ``None`` for ``sys.path``.
    """
    places = None if path is None else list(path)
    spec = PathFinder.find_spec("vllm", places)
    if spec is None or spec.origin is None:
        return None
    for name in DISTRIBUTIONS:
        context = (
            DistributionFinder.Context(name=name)
            if places is None
            else DistributionFinder.Context(name=name, path=places)
        )
        found = filter(None, map(_version_of, MetadataPathFinder.find_distributions(context)))
        if said := next(found, ""):
            version, _, build = said.partition("+")
            return Installed(version, build or name.removeprefix("vllm").removeprefix("-"), Path(spec.origin).parent)
    return None


def missing_for(platform: OmniPlatform, found: Installed | None) -> str:
    """Return why the installed vLLM cannot compute on a platform; an empty text if it can."""
    if found is None:
        return "vLLM is not installed"
    if any(re.fullmatch(pattern, found.build) for pattern in platform.vllm_builds):
        return ""
    build = f"+{found.build}" if found.build else ""
    return f"vLLM {found.version}{build} is not built for platform '{platform.name}'"


def _version_of(distribution: Distribution) -> str:
    """Return a distribution's version; an empty text for the remains of a distribution that was not removed as a
    whole."""
    try:
        return distribution.version or ""
    except UnicodeDecodeError:
        return ""


@lru_cache(maxsize=4)
def architectures(folder: Path) -> frozenset[str]:
    """Return the architectures that the vLLM in ``folder`` computes; none if its tables cannot be read."""
    try:
        module = ast.parse((folder / _REGISTRY).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return frozenset()
    return frozenset(
        key.value
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id in _TABLES
        for key in node.value.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def engine_class(kind: str, platform: OmniPlatform, where: str) -> tuple[str, bool]:
    """Find an engine's class.

    Args:
        kind: An engine kind, or a dotted name.
        platform: The platform, whose own class for a kind comes first.
        where: The place of the setting; messages begin with it.

    Returns:
        The class's dotted name, and whether a plug-in announces the class.

    Raises:
        PlanError: No engine has that kind.
    """
    if ":" in kind:
        return kind, False
    if kind in platform.engines or kind in ENGINES.builtins:
        try:
            return platform.engine_for(kind), False
        except PlatformError as error:
            raise PlanError(f"{where}: {error}") from None
    target, _ = ENGINES.named(kind, where, platform.engines)
    return target, True


def with_choices(stage: Stage) -> Stage:
    """Return the stage with the options of every engine that may compute it, which are the options that a deploy file
    may set."""
    if not stage.vllm:
        return stage
    return replace(stage, options=joined(_by_vllm(stage).options, stage.options))


def choose_engine(stage: Stage, model: str | None, platform: OmniPlatform, settings: Settings) -> tuple[Stage, str]:
    """Choose a stage's engine.

    Args:
        stage: The stage.
        model: The folder of the stage's weights; ``None`` without one.
        platform: The stage's platform.
        settings: The deployment's settings.

    Returns:
        The stage as the engine computes it, and the engine's kind or dotted name.

    Raises:
        PlanError: The engine cannot compute the stage, or a setting is an option of another engine.
    """
    at = stage_path(stage.name)
    kind = settings.get(f"{at}.engine", AUTO if stage.vllm else stage.engine, DECLARED)
    origin = settings.provenance[f"{at}.engine"]
    if kind == VLLM:
        against = _against(stage, model, platform, settings)
        if against:
            raise PlanError(f"{origin}: stage '{stage.name}': {against}")
        return _checked(_by_vllm(stage), settings), VLLM
    alone = stage.engine == VLLM
    if kind == TORCH and alone:
        raise PlanError(f"{origin}: stage '{stage.name}': only vLLM computes it")
    if kind == AUTO and stage.vllm:
        against = _against(stage, model, platform, settings)
        if against and alone:
            against = f"only vLLM computes it, but {against}"
            if model is not None:  # without a model nothing is served yet
                raise PlanError(f"stage '{stage.name}': {against}")
        why = against or f"vLLM is installed, and computes this architecture on '{platform.name}'"
        settings.provenance[f"{at}.engine"] = Origin("default", f"{AUTO}: {why}")
        if not against:
            return _checked(_by_vllm(stage), settings), VLLM
    if kind in (AUTO, TORCH):
        kind = stage.engine
    # An adapter is written for one kind of engine; an engine by dotted name or of a plug-in is used as asked.
    if stage.adapter and kind != stage.engine and ":" not in kind and all(it.name != kind for it in ENGINES.plugins()):
        fitting = sorted({stage.engine, TORCH, *((AUTO, VLLM) if stage.vllm else ())})
        raise PlanError(f"{origin}: stage '{stage.name}' is not written for engine '{kind}'; {nearest(kind, fitting)}")
    return _checked(stage, settings), kind


def _by_vllm(stage: Stage) -> Stage:
    usual, other = options_of(stage.engine), options_of(VLLM)
    # A default that the family has changed holds for either engine.
    kept = {
        name: option
        for name, option in stage.options.items()
        if name not in usual or (name in other and option.default != usual[name].default)
    }
    bare = replace(
        stage,
        engine=VLLM,
        adapter=stage.vllm,
        recovery=stage.recovery or "prefix",
        separable=False,
        options=kept,
    )
    return with_engine_options(bare)


def _against(stage: Stage, model: str | None, platform: OmniPlatform, settings: Settings) -> str:
    """Return why vLLM does not compute a stage; an empty text if nothing is against it."""
    if not stage.vllm:
        return "vLLM does not compute it: its family brings no prompts for another engine"
    if VLLM not in platform.engines:
        return f"platform '{platform.name}' has no engine for vLLM"
    if ROLE in stage.options:
        return "it has a prefill pool of its own, which vLLM's engine does not serve"
    found = installed()
    if (missing := missing_for(platform, found)) or found is None:
        return missing
    if model is None or not Path(model, "config.json").is_file():
        return "the model's config.json is not there to say its architecture"
    named = _architectures_of(Path(model))
    if not architectures(found.folder).intersection(named):
        return f"vLLM {found.version} does not know the architecture {', '.join(named) or 'of the model'}"
    options = f"{stage_path(stage.name)}.options."
    mine = _by_vllm(stage).options
    for path in settings.given:
        if path.startswith(options) and path.removeprefix(options) not in mine:
            return f"{settings.given[path].origin} sets '{path.removeprefix(options)}', which vLLM's engine has not"
    return ""


def _architectures_of(folder: Path) -> list[str]:
    try:
        return list(map(str, json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _checked(stage: Stage, settings: Settings) -> Stage:
    """Return the stage if every option that is set is one of the stage's options and has a right value. Raises
    :class:`PlanError` otherwise."""
    options = f"{stage_path(stage.name)}.options."
    for path, setting in settings.given.items():
        if not path.startswith(options):
            continue
        name = path.removeprefix(options)
        if name not in stage.options:
            raise PlanError(
                f"{setting.origin}: '{path}': the engine '{stage.engine}' has no such option; "
                f"{nearest(name, stage.options)}"
            )
        try:
            option_leaf(name, stage.options[name]).check(setting.value)
        except ValueError as error:
            raise PlanError(f"{setting.origin}: '{path}' {error}, not {setting.value!r}") from None
    return stage
