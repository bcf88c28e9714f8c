"""Which balancer a stage's pool has, and what stands against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.disaggregate import ROLE
from omni_actors.pipelines.plan import Balancer, PlanError
from omni_actors.pipelines.settings import Settings


def balancer_of(at: str, stage: Stage, options: Mapping[str, Any], settings: Settings) -> Balancer:
    """``at`` is the stage's path in settings. Raises :class:`PlanError` for ``prefix_cache`` where no prompt is read or
    kept."""
    path = f"{at}.balancer"
    balancer: Balancer = settings.get(path, "least_queue")
    if balancer != "prefix_cache":
        return balancer
    why = ""
    if options.get(ROLE) == "decode":
        why = f"its prompts are computed by its prefill pool; set {at}.prefill.balancer"
    elif "prompt" not in stage.sections:
        why = "it reads no prompts"
    elif not options.get("prefix_cache"):
        why = "its engine keeps nothing of a prompt (options.prefix_cache)"
    if why:
        raise PlanError(f"{settings.where(path)}: balancer 'prefix_cache' is not for stage '{stage.name}': {why}")
    return balancer
