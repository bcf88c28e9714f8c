"""The choice of the pipeline that serves a model, and of the folder of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import Origin, PlanError
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.diffusers_folder import INDEX, class_of, is_diffusers
from omni_actors.pipelines.weights.files import read_json
from omni_actors.pipelines.weights.hub import PUBLIC_NAME, REVISION, cache_folder, snapshot_folder
from omni_actors.pipelines.weights.intact import Damage, described

DEMO = "omni-demo"

ANY_DIFFUSERS = "diffusers"
"""Name of the pipeline that runs any pipeline of diffusers in its own call."""

IS_CAUSAL_LM = "omni_actors.models.causal_lm.architectures:is_causal_lm"
"""Dotted name of a function that says whether an architecture without a pipeline is a causal language model."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen pipeline.

    Args:
        pipeline: The pipeline.
        folder: The absolute path of the folder of weights; ``None`` without one.
        origin: The origin of the choice.
        checkpoint: The public name of the checkpoint, if that was asked for.
        reason: Why a folder is served by this pipeline, if the folder itself has decided that.
    """

    pipeline: Pipeline
    folder: str | None
    origin: Origin
    checkpoint: str | None = None
    reason: str = ""


def public_name(model: str | None, early: Mapping[str, str], registry: Registry) -> str | None:
    """Return the public name of the requested checkpoint.

    Args:
        model: The operator's argument; ``None`` for the deploy file's model.
        early: Settings of the deploy file by path.
        registry: The known pipelines.

    Returns:
        ``None`` if the argument is a pipeline, a folder, or cannot be a public name.
    """
    name = early.get("model") if model is None else model
    if name is None or name in registry.names() or not PUBLIC_NAME.fullmatch(name):
        return None
    return None if Path(name).expanduser().exists() else name


def choose(
    model: str | None,
    forced: str | None,
    early: Mapping[str, str],
    overlay: Path | None,
    registry: Registry,
    revision: str | None = None,
) -> Choice:
    """Choose what serves a model.

    Args:
        model: A pipeline's name, a folder, or a public checkpoint's name. A folder comes before a checkpoint of the
            same name; a checkpoint need not be on this machine.
        forced: The pipeline to use for a folder; ``None`` for the pipeline of the folder's architecture.
        early: Settings of the deploy file by path.
        overlay: The deploy file, for messages.
        registry: The known pipelines.
        revision: The branch, tag or commit of a public checkpoint.

    Raises:
        PlanError: No pipeline serves the model, or the deploy file is for another pipeline.
    """
    if revision is not None and public_name(model, early, registry) is None:
        raise PlanError(f"--revision {revision}: revisions are of public checkpoints, named organisation/name")
    if revision is not None and not REVISION.fullmatch(revision):
        raise PlanError(f"--revision {revision}: this cannot be the name of a branch, tag or commit")
    origin = Origin("default") if model is None else Origin("command line", model)
    if model is None and "model" in early:
        model, origin = early["model"], Origin("overlay", str(overlay))
    if model is not None and not model.strip():
        raise PlanError(f"{origin}: the name of the model is empty")
    name = DEMO if model == "demo" else model
    if name is None or (name in registry.names() and not _is_path(name)):
        if name is not None and forced not in (None, name):
            raise PlanError(f"'{model}' is a pipeline already, so --pipeline {forced} cannot serve it; give a folder")
        chosen = registry.load(name or forced or early.get("pipeline") or DEMO)
        return Choice(chosen, _own_weights(chosen), origin)
    placed = None if forced else early.get("pipeline")
    forced = forced or placed
    folder = Path(name).expanduser()
    if folder.exists():
        chosen = registry.load(forced) if forced else pipeline_of_folder(folder, registry)
        if placed and chosen.architectures:  # the pipeline serves certain folders only
            _check_claim(name, chosen, _claimant(folder, registry), overlay)
        return Choice(chosen, str(folder.absolute()), origin, reason="" if forced else reason_of(folder, chosen))
    if PUBLIC_NAME.fullmatch(name):
        snapshot = snapshot_folder(name, revision=revision).absolute()
        claimed = registry.load(forced) if forced else registry.for_checkpoint(name)
        reason = ""
        if claimed is None and snapshot.is_dir():
            claimed = pipeline_of_folder(snapshot, registry)
            reason = reason_of(snapshot, claimed)
        if placed and claimed is not None and claimed.checkpoints:
            _check_claim(name, claimed, registry.for_checkpoint(name), overlay)
        if claimed is not None:
            return Choice(claimed, str(snapshot), origin, name, reason)
    raise PlanError(_nothing_of_that_name(name, registry))


def _check_claim(model: str, placed: Pipeline, claimant: Pipeline | None, overlay: Path | None) -> None:
    """Raise :class:`PlanError` if the deploy file is for another pipeline than the requested model."""
    if claimant is not None and claimant.name != placed.name:
        raise PlanError(
            f"{overlay} places '{placed.name}', but '{model}' is served by '{claimant.name}'; "
            f"--pipeline {placed.name} forces it"
        )


def _claimant(folder: Path, registry: Registry) -> Pipeline | None:
    """Return the pipeline that the folder's own ``config.json`` chooses; ``None`` if it chooses none."""
    try:
        return pipeline_of_folder(folder, registry)
    except PlanError:
        return None


def _nothing_of_that_name(name: str, registry: Registry) -> str:
    known = [*registry.offered(), "demo"]
    if not PUBLIC_NAME.fullmatch(name):
        return f"'{name}' is neither a pipeline nor a folder; {nearest(name, known)}"
    checkpoints = registry.checkpoints()
    return (
        f"'{name}' is neither a folder, nor a checkpoint that a pipeline names, nor in the Hugging Face cache "
        f"({cache_folder()}); {nearest(name, [*known, *checkpoints])}"
    )


def _is_path(model: str) -> bool:
    return "/" in model or model.startswith(".")


def _own_weights(pipeline: Pipeline) -> str | None:
    if pipeline.weights is None:
        return None
    return str(Path(resolve_name(pipeline.weights)()).absolute())


def pipeline_of_folder(folder: Path, registry: Registry) -> Pipeline:
    """Return the pipeline for the class in a folder's ``model_index.json``, or the architecture in its ``config.json``.
    A folder of diffusers whose class has no pipeline of its own is for :data:`ANY_DIFFUSERS`. Raises
    :class:`PlanError` if there is none."""
    if is_diffusers(folder):
        named = _class_of(folder)
        return registry.for_architecture(named) or registry.load(ANY_DIFFUSERS)
    config = folder / "config.json"
    try:
        read = read_json(config)
        architectures = list(read.get("architectures") or [])
    except ValueError as error:
        damage = Damage(config, f"it is no valid JSON ({error})")
        raise PlanError(described([damage], folder.absolute())) from None
    except (OSError, AttributeError, TypeError) as error:
        raise PlanError(
            f"'{folder}' is no model's folder: {error}. A folder without a config.json needs --pipeline NAME"
        ) from None
    for architecture in architectures:
        if found := registry.for_architecture(architecture):
            return found
    if any(map(resolve_name(IS_CAUSAL_LM), map(str, architectures))):
        return registry.load("causal-lm")
    named = ", ".join(map(str, architectures)) or "none named"
    raise PlanError(f"no pipeline serves the architecture of {config} ({named}); choose one with --pipeline")


def reason_of(folder: Path, chosen: Pipeline) -> str:
    """Return why a folder of diffusers is served by a pipeline; empty for any other folder."""
    if not is_diffusers(folder):
        return ""
    named = _class_of(folder)
    if chosen.name == ANY_DIFFUSERS:
        return f"{INDEX} names {named}, which no family serves step by step: it runs request by request"
    return f"{INDEX} names {named}"


def _class_of(folder: Path) -> str:
    try:
        return class_of(folder)
    except (OSError, ValueError) as error:
        damage = Damage(folder / INDEX, f"it cannot be used ({error})")
        raise PlanError(described([damage], folder.absolute())) from None
