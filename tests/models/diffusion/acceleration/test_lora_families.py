"""LoRA adapters in families of each build: with different ones and without one in a batch, equal to alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models.diffusion.cases import all_cases
from tests.models.diffusion.orders import Order
from tests.models.diffusion.parity import TOLERANCE, Case, Driven
from torch import nn

from omni_actors.protocol.params import LoraScale

pytestmark = [pytest.mark.slow, pytest.mark.torch]

CHECKPOINTS = ("flux2-klein", "pixart-sigma", "qwen-image", "stable-diffusion-xl", "z-image")


def cases() -> list[Case]:
    """Return the first case of each checkpoint, by name."""
    found = {case.checkpoint: case for case in reversed(all_cases()) if case.checkpoint in CHECKPOINTS}
    return [found[name] for name in sorted(found)]


def targets(model: nn.Module) -> dict[str, nn.Module]:
    """Return layers that adapters of this model change: projections of attention, and a convolution if it has some."""
    queries = {
        name: it for name, it in model.named_modules() if name.endswith(("to_q", "to_v")) and "refiner" not in name
    }
    chosen = dict(list(queries.items())[:4])
    kernels = {name: it for name, it in model.named_modules() if isinstance(it, nn.Conv2d) and "conv1" in name}
    return chosen | dict(list(kernels.items())[:1])


def write(driven: Driven, path: Path, seed: int) -> Path:
    """Write an adapter of random weights for a loaded model."""
    component, drawn = driven.adapter.denoiser, torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in targets(driven.adapter.model).items():
        plain = name.replace(".block.", ".")
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        kernel = weight.shape[2:]
        down = torch.randn(3, *weight.shape[1:], generator=drawn) * weight[0].numel() ** -0.5
        up = torch.randn(weight.shape[0], 3, *(1 for _ in kernel), generator=drawn) * 0.5
        tensors |= {f"{component}.{plain}.lora_A.weight": down, f"{component}.{plain}.lora_B.weight": up}
    assert tensors
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.checkpoint)
def test_different_adapters_in_one_batch(case: Case, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    driven = Driven(case, tiny_model(case.checkpoint))
    for seed, name in enumerate(("red", "blue")):
        path = write(driven, tmp_path / f"{name}.safetensors", seed)
        driven.adapter.query("load_lora", {"name": name, "path": str(path)})
    choices: tuple[list[LoraScale], ...] = ([LoraScale("red")], [], [LoraScale("blue", 0.5), LoraScale("red", -1.0)])
    orders = [with_loras(order, chosen) for order, chosen in zip(case.orders[:3], choices, strict=True)]
    alone = [driven.run([order])[0] for order in orders]
    together = driven.run(orders)
    for trace, expected in zip(together, alone, strict=True):
        assert trace.differs(expected) <= TOLERANCE
    for number in (0, 2):
        (plain,) = driven.run([case.orders[number]])
        assert alone[number].differs(plain) > 10 * TOLERANCE


def with_loras(order: Order, chosen: list[LoraScale]) -> Order:
    fields: dict[str, Any] = {**order.fields, "loras": chosen}
    return replace(order, fields=fields)
