"""A model that makes pictures, in memory: a script in place of workers, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from tests.entrypoints.fakes import Script, Server, Step, served
from tests.media.pictures import png

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.models.diffusion.pipeline import image_pipeline
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import Completed, MediaChunk, Request, StepProgress, Usage

GENERATIONS = "/v1/images/generations"
EDITS = "/v1/images/edits"

PAINTER = image_pipeline("painter", "adapter:P", architectures=("PainterPipeline",), edits=True, doc="Paints.")
"""A model that makes and edits pictures."""

WRITER = image_pipeline("writer", "adapter:P", architectures=("WriterPipeline",), doc="Paints what is written.")
"""A model that makes pictures from text alone, without a media process."""

FACTS: dict[str, Any] = {
    "width": 64,
    "height": 48,
    "multiple": 16,
    "max_pixels": 1 << 20,
    "steps": 8,
    "guidance": 4.0,
    "step_batched": True,
}
SEED = 4321


def seen(request: Request) -> ImageGeneration:
    """The section that the workers of a request would get."""
    section = request.params["image"]
    assert isinstance(section, ImageGeneration)
    return section


def picture(width: int, height: int, value: int) -> bytes:
    """An encoded picture of one colour."""
    return png(np.full((height, width, 3), value % 251, np.uint8))


def paint(request: Request) -> list[Step]:
    """Progress of every step, previews where they are asked for, and each picture as soon as it is finished."""
    image = seen(request)
    width, height = image.width or FACTS["width"], image.height or FACTS["height"]
    count = image.steps or FACTS["steps"]
    seed = SEED if image.seed is None else image.seed
    steps: list[Step] = []
    for index in range(image.n):
        meta = {"index": index, "format": image.format, "width": width, "height": height, "seed": seed + index}
        for step in range(1, count + 1):
            if image.progress:
                steps.append(StepProgress(0, index, step, count))
            if image.previews and not step % image.previews and step < count:
                small = {**meta, "width": width // 2, "height": height // 2, "preview": step}
                steps.append(MediaChunk(0, "image", small, picture(width // 2, height // 2, step)))
        steps.append(MediaChunk(0, "image", meta, picture(width, height, seed + index)))
    used = {"image": Usage(images=image.n, steps=count * image.n, prompt_tokens=5), "pictures": Usage()}
    return [*steps, Completed(used)]


@asynccontextmanager
async def painter(
    script: Script = paint,
    *overrides: str,
    pipeline: Pipeline = PAINTER,
    options: ServerOptions | None = None,
    facts: dict[str, Any] | None = None,
) -> AsyncIterator[Server]:
    """A served model whose workers have reported their facts."""
    async with served(script, *overrides, pipeline=pipeline, options=options) as server:
        server.orchestrator.reported["image"] = FACTS if facts is None else facts
        yield server
