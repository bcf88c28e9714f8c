"""Which pipeline serves a model, and where its weights lie."""

from __future__ import annotations

import json
from pathlib import Path
from pkgutil import resolve_name

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.plan import Origin, PlanError
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.validate import nearest

DEMO = "omni-demo"


def choose(
    model: str | None, forced: str | None, early: dict[str, str], overlay: Path | None, registry: Registry
) -> tuple[Pipeline, str | None, Origin]:
    """The pipeline, the folder of its weights (absolute) and where the choice of the model came from."""
    origin = Origin("default") if model is None else Origin("command line", model)
    if model is None and "model" in early:
        model, origin = early["model"], Origin("overlay", str(overlay))
    if model is not None and not model.strip():
        raise PlanError(f"{origin}: the name of the model is empty")
    name = DEMO if model == "demo" else model
    if name is None or (name in registry.targets and not _is_path(name)):
        if name is not None and forced not in (None, name):
            raise PlanError(f"'{model}' is a pipeline already, so --pipeline {forced} cannot serve it; give a folder")
        chosen = registry.load(name or forced or early.get("pipeline") or DEMO)
        return chosen, _own_weights(chosen), origin
    folder = Path(name).expanduser()
    if not folder.exists():
        raise PlanError(f"'{model}' is neither a pipeline nor a folder; {nearest(name, [*registry.targets, 'demo'])}")
    forced = forced or early.get("pipeline")
    chosen = registry.load(forced) if forced else _pipeline_of_folder(folder, registry)
    return chosen, str(folder.absolute()), origin


def _is_path(model: str) -> bool:
    return "/" in model or model.startswith(".")


def _own_weights(pipeline: Pipeline) -> str | None:
    if pipeline.weights is None:
        return None
    return str(Path(resolve_name(pipeline.weights)()).absolute())


def _pipeline_of_folder(folder: Path, registry: Registry) -> Pipeline:
    config = folder / "config.json"
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
        architectures = list(read.get("architectures") or [])
    except (OSError, ValueError, AttributeError) as error:
        raise PlanError(
            f"'{folder}' is no model's folder: {error}. A folder without a config.json needs --pipeline NAME"
        ) from None
    for architecture in architectures:
        if found := registry.for_architecture(architecture):
            return found
    if any(str(architecture).endswith("ForCausalLM") for architecture in architectures):
        return registry.load("causal-lm")
    named = ", ".join(map(str, architectures)) or "none named"
    raise PlanError(f"no pipeline serves the architecture of {config} ({named}); choose one with --pipeline")
