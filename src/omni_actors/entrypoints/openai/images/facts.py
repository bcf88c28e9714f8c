"""The facts of a model that makes pictures: what it can make, and what it makes by default.

A worker reports the facts when it has loaded the model. Before that nothing is known, and the worker itself checks each
request later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.plan import Plan

GENERATE = "image"
"""The task that makes pictures from text."""

EDIT = "image_edit"
"""The task that edits pictures."""

TASKS = (GENERATE, EDIT)

SECTION = "image"
"""The section of a request's parameters that the stages of pictures read."""


class PictureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a model that makes pictures. ``None`` means that a fact is not known.

    Args:
        width: The default width in pixels.
        height: The default height in pixels.
        multiple: The number that width and height must divide by.
        max_pixels: The most pixels of a picture.
        max_side: The longest side in pixels, if there is one beside the most pixels.
        sizes: The only sizes, if the model has a table of them.
        steps: The default number of steps.
        max_steps: The most steps of a request.
        guidance: The default guidance scale.
        step_batched: Whether pictures of several requests share forwards step by step.
        alpha: Whether the model makes transparent pictures.
        loras: Names of the LoRA adapters that are loaded.
    """

    width: int | None = None
    height: int | None = None
    multiple: int | None = None
    max_pixels: int | None = None
    max_side: int | None = None
    sizes: tuple[tuple[int, int], ...] = ()
    steps: int | None = None
    max_steps: int | None = None
    guidance: float | None = None
    step_batched: bool | None = None
    alpha: bool | None = None
    loras: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """The default size, if it is known."""
        return None if self.width is None or self.height is None else (self.width, self.height)


def picture_stages(plan: Plan) -> Sequence[str]:
    """Return the names of the stages that make pictures: they have steps, in the order of the plan."""
    return [
        stage.name for stage in plan.stages if SECTION in stage.declaration.sections and "max_steps" in stage.options
    ]


def picture_facts(services: Services) -> PictureFacts:
    """Return what is known of the deployment's pictures, from its options and from its workers."""
    found: dict[str, Any] = {}
    for name in picture_stages(services.plan):
        options = services.plan.stage(name).options
        for fact, value in (*_options(options), *services.orchestrator.facts(name).items()):
            if value is not None:
                found[fact] = value
    known = {name: found[name] for name in PictureFacts.__struct_fields__ if name in found}
    return msgspec.convert(known, PictureFacts)


def _options(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, options.get(name)) for name in ("steps", "max_steps", "guidance", "max_pixels")]
