"""A tiny Stable Diffusion 3 with six blocks, for what skips or changes blocks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import diffusers
from tests.models.diffusion.cases.sd3 import CASES
from tests.models.diffusion.orders import EIGHT, Order

from omni_actors.models.tiny.diffusion.sd3 import GAINS
from omni_actors.models.tiny.weights import initialise
from omni_actors.protocol.params import LoraScale

BLOCKS = 6

CASE = CASES[0]


def write_deep(folder: Path, tiny: Path) -> Path:
    """Write the checkpoint into ``folder`` from the family's tiny one, and return it."""
    shutil.copytree(tiny, folder)
    shallow = diffusers.SD3Transformer2DModel.load_config(tiny / "transformer")
    transformer = diffusers.SD3Transformer2DModel.from_config({**shallow, "num_layers": BLOCKS})
    initialise(transformer, 3, GAINS)
    shutil.rmtree(folder / "transformer")
    transformer.save_pretrained(folder / "transformer")
    return folder


def orders(*fields: dict[str, object]) -> list[Order]:
    """Return the orders of the parity tests, each with more steps and with these fields of its section, in turn."""
    return [
        replace(order, steps=order.steps + 3, fields=fields[number % len(fields)])
        for number, order in enumerate(EIGHT[:5])
    ]


def loras(**scales: float) -> dict[str, object]:
    """Return the fields of a request with LoRA adapters."""
    return {"loras": [LoraScale(name, scale) for name, scale in scales.items()]}
