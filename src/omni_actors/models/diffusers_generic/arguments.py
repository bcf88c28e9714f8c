"""The arguments of a pipeline's call, from the signature of the call and a request."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration

FIELDS: Mapping[str, tuple[str, str]] = {
    "negative_prompt": ("negative_prompt", "negative_prompt"),
    "guidance": ("guidance_scale", "guidance_scale"),
    "true_guidance": ("true_cfg_scale", "true_cfg_scale"),
    "strength": ("strength", "strength"),
    "layers": ("layers", "layers"),
    "width": ("width", "size"),
    "height": ("height", "size"),
    "steps": ("num_inference_steps", "steps"),
}
"""Field of the section ``image`` → the argument of a pipeline, and the client's name for the field."""

PICTURES, MASK = "image", "mask_image"

_FILLED = frozenset(
    {
        *("self", "prompt", "generator", "output_type", "return_dict", PICTURES, MASK),
        *(argument for argument, _ in FIELDS.values()),
    }
)


class Signature:
    """The arguments that one pipeline takes.

    Args:
        pipe: The pipeline.

    Raises:
        ValueError: The pipeline takes no prompt, or needs an argument that a request cannot give.
    """

    def __init__(self, pipe: Any) -> None:
        self._name = type(pipe).__name__
        self._taken = inspect.signature(type(pipe).__call__).parameters
        if "prompt" not in self._taken:
            raise ValueError(f"{self._name} takes no prompt: it is no pipeline from text to pictures")
        if lacking := [name for name, it in self._taken.items() if _needed(it) and name not in _FILLED]:
            raise ValueError(f"{self._name} needs '{lacking[0]}', which no request can give")

    def takes(self, argument: str) -> bool:
        """Return whether the pipeline takes an argument."""
        return argument in self._taken

    def needs(self, argument: str) -> bool:
        """Return whether the pipeline cannot be called without an argument."""
        return self.takes(argument) and _needed(self._taken[argument])

    def default(self, argument: str) -> Any:
        """Return the default of an argument; ``None`` for an argument without one."""
        it = self._taken.get(argument)
        return None if it is None or it.default is inspect.Parameter.empty else it.default

    def check(self, image: ImageGeneration) -> None:
        """Raise 400 for a field of a request that the pipeline does not take."""
        for field, (argument, param) in FIELDS.items():
            if getattr(image, field) is not None and not self.takes(argument):
                raise invalid_request(f"{self._name} takes no '{argument}'.", param)
        if image.pictures and not self.takes(PICTURES):
            raise invalid_request(f"{self._name} takes no pictures.", "image")
        if image.mask and not self.takes(MASK):
            raise invalid_request(f"{self._name} takes no mask.", "mask")
        if self.needs(PICTURES) and not image.pictures:
            raise invalid_request(f"{self._name} needs a picture.", "image")
        if self.needs(MASK) and not image.mask:
            raise invalid_request(f"{self._name} needs a mask.", "mask")

    def arguments(
        self, image: ImageGeneration, generator: Any, pictures: list[Any] | None = None, mask: Any = None
    ) -> dict[str, Any]:
        """Return the arguments of the call for one picture of a request. Fields that the client leaves open are the
        pipeline's own."""
        found: dict[str, Any] = {"prompt": image.prompt, "generator": generator, "output_type": "pil"}
        for field, (argument, _) in FIELDS.items():
            if (value := getattr(image, field)) is not None:
                found[argument] = value
        if pictures:
            found[PICTURES] = pictures[0] if len(pictures) == 1 else pictures
        if mask is not None:
            found[MASK] = mask
        return {name: value for name, value in found.items() if self.takes(name)}


def _needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty and parameter.kind not in (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    )
