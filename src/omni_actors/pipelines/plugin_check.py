"""The check of a pipeline plug-in's declaration, run as a subprocess probe (:mod:`omni_actors.plugins.probe`)."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from omni_actors.platforms.inspection import Broken, attempt, check_options, check_untouched


def answer(argument: dict[str, str]) -> dict[str, Any]:
    """Examine a pipeline plug-in. Return ``{"broken": sentence}``, or the ``architectures``, ``checkpoints`` and
    ``doc`` of the pipeline."""
    name, value = argument["name"], argument["value"]
    try:
        found = _look(name, value)
        check_untouched(value)
    except Broken as broken:
        return {"broken": str(broken)}
    return found


def _look(name: str, value: str) -> dict[str, Any]:
    from omni_actors.pipelines.declaration import Pipeline
    from omni_actors.pipelines.plan import PlanError
    from omni_actors.pipelines.validate import check_declaration

    pipeline = attempt("cannot be imported", resolve_name, value)
    if not isinstance(pipeline, Pipeline):
        raise Broken(f"{value} is {_kind(pipeline)}, not a Pipeline")
    if pipeline.name != name:
        raise Broken(f"its entry point is called '{name}', and the pipeline itself {pipeline.name!r}")
    _check_types(pipeline)
    try:
        check_declaration(pipeline)
    except PlanError as error:
        raise Broken(error.info.message.replace(f"pipeline '{name}': ", "").replace("\n", "; ")) from None
    except Exception as error:
        raise Broken(f"its declaration cannot be checked: {type(error).__name__}: {error}") from error
    return {
        "architectures": list(pipeline.architectures),
        "checkpoints": list(pipeline.checkpoints),
        "doc": pipeline.doc,
    }


def _check_types(pipeline: Any) -> None:
    from omni_actors.pipelines.declaration import Edge, Parameter, Port, Stage, Task

    for field, kind in (("stages", Stage), ("edges", Edge), ("tasks", Task), ("parameters", Parameter)):
        _check_tuple(f"its {field}", getattr(pipeline, field), kind)
    for field in ("architectures", "checkpoints", "voices", "languages", "task_types"):
        _check_tuple(f"its {field}", getattr(pipeline, field), str)
    for stage in pipeline.stages:
        at = f"stage {stage.name!r}:"
        _check_tuple(f"{at} its ports", stage.ports, Port)
        _check_tuple(f"{at} its sections", stage.sections, str)
        for field in ("name", "engine", "adapter", "doc"):
            _check_text(f"{at} its {field}", getattr(stage, field))
        check_options(f"{at} its", stage.options)
    for field in ("describe", "weights"):
        if getattr(pipeline, field) is not None:
            _check_text(f"its {field}", getattr(pipeline, field))
    _check_text("its doc", pipeline.doc)


def _check_tuple(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, tuple):
        raise Broken(f"{what} are {_kind(value)}, not a tuple of {kind.__name__}")
    for it in value:
        if not isinstance(it, kind):
            raise Broken(f"{what} hold {_kind(it)}, and should hold {kind.__name__} alone")


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise Broken(f"{what} is {_kind(value)}, not a text")


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
