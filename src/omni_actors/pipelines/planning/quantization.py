"""The check of quantized checkpoints.

The torch engines read weights by name. From a quantized checkpoint they would read the numbers without the scales, and
answer wrongly, so such a checkpoint is refused when the deployment is planned.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.strategy import VLLM
from omni_actors.pipelines.weights.diffusers_folder import components_of
from omni_actors.platforms.platform import OmniPlatform

_MODELOPT = "hf_quant_config.json"
"""The file in which NVIDIA's ModelOpt describes its quantization, beside a configuration that need not mention it."""


_LOADED_BY_DIFFUSERS = frozenset({"bitsandbytes", "gguf", "quanto", "torchao"})
"""Methods whose weights diffusers' own loaders read with their scales, component by component."""


def method_of(folder: Path) -> str | None:
    """Return a checkpoint's quantization by its ``quant_method``, of the whole model or of a part; ``None`` for plain
    weights and for a folder without a configuration. A folder of diffusers has a configuration for each component."""
    found = (_method_in(folder / name) for name in ("", *components_of(folder)))
    return next((method for method in found if method is not None), None)


def _method_in(folder: Path) -> str | None:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if method := _method(config):
        return method
    return "modelopt" if (folder / _MODELOPT).is_file() else None


def check_quantization(stage: str, kind: str, model: str | None, platform: OmniPlatform) -> None:
    """Check that a stage's engine and platform can compute its checkpoint.

    vLLM and engines by dotted name load checkpoints themselves, and report quantizations that they do not support. So
    do the loaders of diffusers, for the methods that they know.

    Raises:
        PlanError: The checkpoint is quantized in a way that the platform's engines cannot compute.
    """
    method = method_of(Path(model)) if model and kind != VLLM and ":" not in kind else None
    if method is None or (kind == "diffusion" and method in _LOADED_BY_DIFFUSERS):
        return
    reason = platform.quantization.get(method, f"platform '{platform.name}' does not know it")
    if reason:
        raise PlanError(f"stage '{stage}': the weights of {model} are quantized ({method}): {reason}")


def _method(config: Any) -> str | None:
    if not isinstance(config, dict):
        return None
    for key in ("quantization_config", "compression_config"):
        if isinstance(said := config.get(key), dict):
            return str(said.get("quant_method") or "compressed-tensors")
    return next((method for part in config.values() if (method := _method(part))), None)
