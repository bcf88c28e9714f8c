"""The call of ``images``: pictures made from a text, or edited."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import trio

from omni_actors.entrypoints.offline.calls import Call
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.images.facts import PictureFacts
from omni_actors.entrypoints.openai.images.schemas import PictureFields
from omni_actors.entrypoints.openai.images.section import image_section
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.request import MediaChunk, MediaRef, Request, StepProgress

Size = str | tuple[int, int]
"""Width and height in pixels: ``"512x768"``, or a pair of numbers."""

Source = bytes | Path
"""A picture: the bytes of a file, or its path."""

Watcher = Callable[[StepProgress | MediaChunk], None]
"""A function that is told of each step, and of each preview."""

_WIRE = {
    "guidance": "guidance_scale",
    "true_guidance": "true_cfg_scale",
    "format": "output_format",
    "compression": "output_compression",
}
"""Argument → the field of an HTTP body, where they differ. The same ranges apply to both."""

FIELDS = ("negative_prompt", "true_guidance", "strength", "layers", "loras", "cache", "compression", "background")
"""Arguments that only some models honour."""


@dataclass(frozen=True, slots=True)
class ImagesCall(Call):
    """A call of ``images``."""

    prompt: str
    n: int
    size: Size | None
    steps: int | None
    guidance: float | None
    seed: int | None
    format: str
    pictures: Sequence[Source] | Source
    mask: Source | None
    previews: int
    on_event: Watcher | None
    fields: Mapping[str, Any]
    progress: bool = False

    @property
    def watcher(self) -> Watcher | None:
        return self.on_event

    def streamed(self) -> ImagesCall:
        if self.on_event is not None:
            message = "'on_event' is for calls that wait for the pictures; a stream gives its events itself."
            raise invalid_request(message, "on_event", "invalid_value")
        return replace(self, progress=True)

    async def request(self, plan: Plan, media: MediaService, kept: list[MediaRef]) -> Request:
        pictures = _sources(self.pictures)
        if self.mask is not None and not pictures:
            raise invalid_request("'mask' needs a picture in 'pictures'.", "mask", "invalid_value")
        task, inputs = ("image_edit", ("text", "image")) if pictures else ("image", ("text",))
        subgraph(plan, task, inputs, ("image",))
        if self.on_event is not None and not callable(self.on_event):
            raise invalid_request("'on_event' is a function of one event.", "on_event", "invalid_value")
        if type(self.previews) is not int or self.previews < 0:
            raise invalid_request("'previews' is a number of steps from 0.", "previews", "invalid_value")
        if self.previews and not (self.progress or self.on_event):
            message = "'previews' needs 'on_event', or a stream: the output has finished pictures only."
            raise invalid_request(message, "previews", "invalid_value")
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            raise invalid_request("'prompt' is a text that is not blank.", "prompt", "invalid_value")
        image = image_section(
            self._fields(),
            PictureFacts(),
            self.prompt,
            adapters=plan.adapters,
            pictures=len(pictures),
            mask=self.mask is not None,
        )
        image.previews = self.previews
        image.progress = self.progress or self.on_event is not None
        for place, source in enumerate(pictures):
            kept.append(await _decoded(media, source, f"pictures[{place}]", How(alpha=True)))
        if self.mask is not None:
            first = kept[0]
            how = How(mask_of=(first.width, first.height))
            kept.append(await _decoded(media, self.mask, "mask", how))
        return Request(task=task, inputs=inputs, outputs=("image",), params={"image": image}, media=tuple(kept))

    def _fields(self) -> PictureFields:
        for name in self.fields:
            if name not in FIELDS:
                known = ", ".join(FIELDS)
                raise invalid_request(
                    f"'{name}' is no field of a request for pictures; there are: {known}.", name, "unknown_parameter"
                )
        given = {
            "n": self.n,
            "steps": self.steps,
            "guidance": self.guidance,
            "seed": self.seed,
            "format": self.format,
            "size": _size(self.size),
            **self.fields,
        }
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON would have null for it
                raise invalid_request(f"'{name}' must be a number.", name, "invalid_value")
        body = {_WIRE.get(name, name): value for name, value in given.items()}
        try:
            return decode(msgspec.json.encode(body), PictureFields)
        except OmniError as error:
            raise _in_words_of_arguments(error) from None
        except (TypeError, ValueError, OverflowError) as error:  # a value that JSON has not
            raise invalid_request(
                f"A field of the request is no plain value: {error}.", None, "invalid_value"
            ) from None


def _in_words_of_arguments(error: OmniError) -> OmniError:
    """Return the error with the argument's name in the place of the HTTP field's."""
    info = error.info
    for name, wire in _WIRE.items():
        if info.param == wire:
            message = info.message.replace(f"'{wire}'", f"'{name}'")
            return OmniError(msgspec.structs.replace(info, param=name, message=message))
    return error


def _size(size: Any) -> str | None:
    if size is None or isinstance(size, str):
        return size
    if isinstance(size, tuple | list) and len(size) == 2 and all(type(side) is int for side in size):
        return f"{size[0]}x{size[1]}"
    raise invalid_request("'size' is a text such as '512x768', or a pair of numbers.", "size", "invalid_value")


def _sources(pictures: Any) -> list[Any]:
    if isinstance(pictures, bytes | bytearray | memoryview | Path):
        return [pictures]
    if isinstance(pictures, str) or not isinstance(pictures, Sequence):
        raise _no_picture("pictures", pictures)
    return list(pictures)


async def _decoded(media: MediaService, source: Any, param: str, how: How) -> MediaRef:
    """Decode a picture to be edited, or its mask."""
    name = source.name if isinstance(source, Path) else None
    if isinstance(source, Path):
        source = await trio.Path(source).read_bytes()
    if not isinstance(source, bytes | bytearray | memoryview):
        raise _no_picture(param, source)
    return await media.decode(bytes(source), modality="image", how=how, filename=name, param=param)


def _no_picture(param: str, given: object) -> OmniError:
    kind = type(given).__name__
    return invalid_request(
        f"'{param}' takes the bytes of a picture's file, or a pathlib.Path to it; not {kind}.", param, "invalid_value"
    )
