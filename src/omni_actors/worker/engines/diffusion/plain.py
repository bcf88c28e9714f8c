"""The refusal of accelerations by adapters that have none. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engines.diffusion.options import OPTIONS

ACCELERATIONS = ("cache_threshold", "loras", "offload", "compile")
"""The options that switch accelerations on."""


def check_plain_stage(options: Mapping[str, Any]) -> None:
    """Raise an error if an option switches an acceleration on."""
    for name in ACCELERATIONS:
        if options.get(name, OPTIONS[name].default) != OPTIONS[name].default:
            raise invalid_request(f"This model's adapter has no acceleration by the option '{name}'; leave it out.")


def check_plain_request(image: ImageGeneration) -> None:
    """Raise 400, with ``param``, if a request asks for an acceleration."""
    if image.cache and image.cache.get("threshold") != 0:
        raise invalid_request("This model has no step cache; leave out 'cache'.", "cache")
    if image.loras:
        raise invalid_request("This model takes no LoRA adapters.", "lora")
