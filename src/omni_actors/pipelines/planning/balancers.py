"""The choice of a stage's balancer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.deploy.settings import Settings
from omni_actors.pipelines.extensions import BALANCERS, look_at_balancer
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.planning.disaggregate import ROLE


def balancer_of(at: str, stage: Stage, options: Mapping[str, Any], settings: Settings) -> tuple[str, str]:
    """Choose the balancer of a stage's pool. The call blocks while a subprocess probe examines a plug-in's balancer.

    Args:
        at: The stage's path in settings.
        stage: The stage.
        options: The stage's options.
        settings: The deployment's settings.

    Returns:
        The balancer's name, and the dotted name of its class.

    Raises:
        PlanError: No balancer has the name, the plug-in is broken, or ``prefix_cache`` is set for a stage that reads no
            prompts or keeps nothing of them.
    """
    path = f"{at}.balancer"
    balancer: str = settings.get(path, "least_queue")
    target, plugin = BALANCERS.named(balancer, f"{settings.where(path)}: stage '{stage.name}'")
    if plugin is not None and (report := look_at_balancer(plugin)).state == "broken":
        raise PlanError(f"{settings.where(path)}: {report} is broken: {report.reason}")
    if balancer != "prefix_cache":
        return balancer, target
    why = ""
    if options.get(ROLE) == "decode":
        why = f"its prompts are computed by its prefill pool; set {at}.prefill.balancer"
    elif "prompt" not in stage.sections:
        why = "it reads no prompts"
    elif not options.get("prefix_cache"):
        why = "its engine caches no prompts (options.prefix_cache)"
    if why:
        raise PlanError(f"{settings.where(path)}: balancer 'prefix_cache' is not for stage '{stage.name}': {why}")
    return balancer, target
