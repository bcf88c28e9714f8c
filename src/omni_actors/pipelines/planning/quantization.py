"""Quantized checkpoints: what a stage would load, and whether its engine and platform can.

The torch engines read weights as they are named: of one that is quantized they would read the numbers and not their
scales, and answer, wrongly. So it is refused when the deployment is planned.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.strategy import VLLM
from omni_actors.platforms.platform import OmniPlatform

_MODELOPT = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt writes what it did, beside a configuration that may not say it."""


def method_of(folder: Path) -> str | None:
    """How a checkpoint's weights are quantized, by its ``quant_method``, the whole model's or one part's; ``None`` for
    one whose weights are plain, and where there is no configuration."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if method := _method(config):
        return method
    return "modelopt" if (folder / _MODELOPT).is_file() else None


def check_quantization(stage: str, kind: str, model: str | None, platform: OmniPlatform) -> None:
    """Raises :class:`PlanError` for a stage whose checkpoint is quantized in a way that the platform's engines cannot
    compute. vLLM, and an engine that is named by its class, load by themselves, and say themselves what they cannot."""
    method = method_of(Path(model)) if model and kind != VLLM and ":" not in kind else None
    if method is None:
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
