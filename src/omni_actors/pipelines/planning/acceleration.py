"""The check of accelerations of diffusion stages that do not go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.plan import PlanError
from omni_actors.platforms.platform import OmniPlatform


def check_acceleration(
    at: str, stage: Stage, platform: OmniPlatform, options: Mapping[str, Any], where: Callable[[str], object]
) -> None:
    """Check that a stage's accelerations go together, and with its platform.

    Args:
        at: The path of the stage's settings.
        stage: The stage.
        platform: The stage's platform.
        options: A value for each of the stage's options. Stages without the options of diffusion are not checked.
        where: The place of a setting by its path; messages begin with it.

    Raises:
        PlanError: Two of the options exclude each other, or the platform excludes one; the message has the reason.
    """
    offload, compiled = options.get("offload", "none"), options.get("compile", False)
    wrong = ""
    if offload != "none" and not platform.own_memory:
        wrong = f"platform '{platform.name}' computes in the host's memory, so weights cannot wait there"
    elif offload != "none" and compiled:
        wrong = "compiled blocks do not bring their weights to the device; leave out 'offload' or 'compile'"
    elif compiled and options.get("loras"):
        wrong = "compiled blocks add no terms of LoRA adapters; leave out 'loras' or 'compile'"
    if wrong:
        name = "offload" if offload != "none" else "compile"
        raise PlanError(f"{where(f'{at}.options.{name}')}: stage '{stage.name}': {wrong}")
