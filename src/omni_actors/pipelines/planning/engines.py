"""Which engine computes a stage, where there is a choice: this project's own, with torch, or vLLM.

Order: the command line's word, the deploy file's, and else (``auto``) vLLM where the platform has an engine for it, a
build of it for that platform is installed, it knows the model's architecture, and nothing is asked for that only the
other one does. What is installed is read off the disk: neither vLLM nor torch is imported here.
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
"""Names under which vLLM is installed: its own, and that of builds for the CPU alone."""

_REGISTRY = "model_executor/models/registry.py"
_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
"""Where vLLM lists the architectures that write text, and the tables there."""


@dataclass(frozen=True, slots=True)
class Installed:
    """vLLM as it lies on this machine. ``build`` is the local part of its version (``cpu``, ``cu130``, or empty)."""

    version: str
    build: str
    folder: Path


def installed(path: Sequence[str] | None = None) -> Installed | None:
    """What is installed on ``path`` (else on ``sys.path``)."""
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
    """Why what is installed of vLLM (:func:`installed`) cannot compute on a platform; empty if it can."""
    if found is None:
        return "vLLM is not installed"
    if any(re.fullmatch(pattern, found.build) for pattern in platform.vllm_builds):
        return ""
    build = f"+{found.build}" if found.build else ""
    return f"vLLM {found.version}{build} is not built for platform '{platform.name}'"


def _version_of(distribution: Distribution) -> str:
    """Empty for what is left of one that was not removed whole."""
    try:
        return distribution.version or ""
    except UnicodeDecodeError:
        return ""


@lru_cache(maxsize=4)
def architectures(folder: Path) -> frozenset[str]:
    """Those that the vLLM in ``folder`` computes. Empty where its tables cannot be made out."""
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
    """The dotted name of the class for an engine kind (or of that dotted name itself) on a platform, and whether a
    plug-in announces it. ``where`` begins the message of the :class:`PlanError` for a kind that nobody has."""
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
    """The stage with the options of every engine that may compute it: what a deploy file may set of it."""
    if not stage.vllm:
        return stage
    return replace(stage, options=joined(_by_vllm(stage).options, stage.options))


def choose_engine(stage: Stage, model: str | None, platform: OmniPlatform, settings: Settings) -> tuple[Stage, str]:
    """The engine's kind or dotted name, and the stage as that has it. ``model`` is the folder of the stage's weights.
    Raises :class:`PlanError` for an engine that cannot compute it, and for options of another one."""
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
        raise PlanError(f"{origin}: stage '{stage.name}': vLLM alone computes it")
    if kind == AUTO and stage.vllm:
        against = _against(stage, model, platform, settings)
        if against and alone:
            against = f"vLLM alone computes it, but {against}"
            if model is not None:  # else there is nothing to be served yet
                raise PlanError(f"stage '{stage.name}': {against}")
        why = against or f"vLLM is installed, and computes this architecture on '{platform.name}'"
        settings.provenance[f"{at}.engine"] = Origin("default", f"{AUTO}: {why}")
        if not against:
            return _checked(_by_vllm(stage), settings), VLLM
    if kind in (AUTO, TORCH):
        kind = stage.engine
    # An adapter is written for one kind of engine; an engine by dotted name, or a plug-in's, is taken at its word.
    if stage.adapter and kind != stage.engine and ":" not in kind and all(it.name != kind for it in ENGINES.plugins()):
        fitting = sorted({stage.engine, TORCH, *((AUTO, VLLM) if stage.vllm else ())})
        raise PlanError(f"{origin}: stage '{stage.name}' is not written for engine '{kind}'; {nearest(kind, fitting)}")
    return _checked(stage, settings), kind


def _by_vllm(stage: Stage) -> Stage:
    usual, other = options_of(stage.engine), options_of(VLLM)
    # What the family has set otherwise than the engine's usual is the family's word for either engine.
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
    """Why vLLM does not compute this stage; empty if nothing speaks against it."""
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
    """The same stage, if every option that was set is one of its own and right for it."""
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
