"""The pipelines of diffusion models: one stage that makes pictures, or three, and the stage that writes files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from omni_actors.media.stage import PICTURES
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option

PICTURES_IN = Port(
    "pictures", "media", required=False, mode="chunk", doc="Pictures to edit, in order, and a mask behind them."
)


def image_pipeline(
    name: str,
    adapter: str,
    *,
    architectures: tuple[str, ...],
    edits: bool = False,
    generates: bool = True,
    options: Mapping[str, Option] | None = None,
    checkpoints: tuple[str, ...] = (),
    describe: str | None = None,
    doc: str,
) -> Pipeline:
    """Return a pipeline whose one stage ``image`` encodes, denoises and decodes.

    Args:
        name: The pipeline's name.
        adapter: Dotted name of the family's :class:`~omni_actors.worker.engines.diffusion.adapter.DiffusionAdapter`.
        architectures: The ``_class_name`` entries of a ``model_index.json`` that the pipeline serves.
        edits: Whether the model edits pictures.
        generates: Whether the model makes pictures from text alone.
        options: Options of the family, beside the engine's.
        checkpoints: Public names of checkpoints.
        describe: Dotted name of a function that reads the facts of a folder.
        doc: One sentence about the family.
    """
    stage = Stage(
        "image",
        engine="diffusion",
        adapter=adapter,
        ports=(PICTURES_IN,) if edits else (),
        sections=("image",),
        weight=4.0,
        options=dict(options or {}),
        doc="Makes pictures from text, step by step.",
    )
    tasks = []
    if generates:
        tasks.append(Task("image", entries={"text": "image"}, outputs={"image": PICTURES.name}))
    if edits:
        entries = {"text": "image", "image": "image.pictures"}
        tasks.append(Task("image_edit", entries=entries, outputs={"image": PICTURES.name}))
    return Pipeline(
        name=name,
        stages=(stage, PICTURES),
        edges=(Edge("image", "pictures.pixels", "pixels", mode="chunk", capacity=4),),
        tasks=tuple(tasks),
        architectures=architectures,
        checkpoints=checkpoints,
        files=("*.txt", "*.model"),
        describe=describe,
        doc=doc,
    )


def apart(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with its stage ``image`` as three stages: ``encoder``, ``denoiser`` and ``decoder``."""
    (whole,) = [stage for stage in pipeline.stages if stage.name == "image"]
    option = Option("", "The parts of the model that this stage runs.")

    def part(name: str, parts: str, ports: tuple[Port, ...], weight: float, doc: str) -> Stage:
        options = {**whole.options, "parts": replace(option, default=parts)}
        return replace(whole, name=name, ports=ports, weight=weight, options=options, doc=doc)

    encoder = part("encoder", "encode", whole.ports, 1.0, "Reads the prompt and the pictures.")
    conditioning = Port("conditioning", "conditioning", mode="chunk", doc="Embeddings, one payload for each request.")
    denoiser = part("denoiser", "denoise", (conditioning,), 4.0, "Denoises latents, step by step.")
    latents = Port("latents", "latent", mode="chunk", doc="Latents, one payload for each picture.")
    decoder = part("decoder", "decode", (latents,), 1.0, "Turns latents into pixels.")
    tasks = tuple(
        replace(task, entries={kind: at.replace("image", "encoder", 1) for kind, at in task.entries.items()})
        for task in pipeline.tasks
    )
    return replace(
        pipeline,
        name=f"{pipeline.name}-apart",
        stages=(encoder, denoiser, decoder, PICTURES),
        edges=(
            Edge("encoder", "denoiser.conditioning", "conditioning", mode="chunk", capacity=4),
            Edge("denoiser", "decoder.latents", "latent", mode="chunk", capacity=4),
            Edge("decoder", "pictures.pixels", "pixels", mode="chunk", capacity=4),
        ),
        tasks=tasks,
        architectures=(),
        checkpoints=(),
    )
