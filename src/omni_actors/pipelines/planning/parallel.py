"""The check of a stage's parallel degrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omni_actors.pipelines.declaration import Stage
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.planning.disaggregate import ROLE
from omni_actors.pipelines.strategy import (
    VLLM,
    Network,
    Strategy,
    engine_refusals,
    expert_refusals,
    network_refusals,
)
from omni_actors.platforms.platform import OmniPlatform


def check_strategy(
    at: str,
    stage: Stage,
    kind: str,
    strategy: Strategy,
    model: str | None,
    platform: OmniPlatform,
    options: Mapping[str, Any],
    where: Callable[[str], str],
) -> None:
    """Check the parallel degrees of a stage.

    The engine, the family, the platform, and the sizes in the model's ``config.json`` (if the file exists) must allow
    the degrees.

    Args:
        at: The stage's path in settings.
        stage: The stage.
        kind: The engine's kind.
        strategy: The degrees.
        model: The folder of the stage's weights.
        platform: The stage's platform.
        options: The stage's options.
        where: A function from a path to the origin of its setting, for messages.

    Raises:
        PlanError: A degree is impossible.
    """
    for axis, reason in _refusals(stage, kind, strategy, model, platform, options):
        raise PlanError(f"{where(f'{at}.strategy.{axis}')}: stage '{stage.name}': {reason}")


def _refusals(
    stage: Stage,
    kind: str,
    strategy: Strategy,
    model: str | None,
    platform: OmniPlatform,
    options: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    if strategy == Strategy():
        return
    yield from engine_refusals(strategy, kind)
    yield from expert_refusals(strategy)
    there = stage.network and model is not None and Path(model, "config.json").is_file()
    network = _network(stage, Path(model)) if there and model is not None else None
    if kind == VLLM:
        if network is not None:  # limits of this project's own code do not hold for vLLM
            yield from network_refusals(strategy, replace(network, why_not=()))
        return
    axis, degree = widest(strategy)
    asked = f"{axis} parallel degree {degree}"
    if not stage.network:
        yield axis, f"{asked} is not supported by this stage's family; only degree 1 runs"
    if ROLE in stage.options:
        yield axis, f"{asked} does not work together with a prefill pool yet: a single rank hands prompts over"
    if options.get("fused") is False:
        yield axis, f"{asked} needs this project's own layers: leave options.fused at its default"
    if not platform.collectives:
        yield axis, f"{asked}: platform '{platform.name}' has no collectives, so that a replica is one rank"
    if network is not None:
        yield from network_refusals(strategy, network)


def _network(stage: Stage, folder: Path) -> Network:
    try:
        found = resolve_name(stage.network)(folder)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise PlanError(f"stage '{stage.name}': {folder / 'config.json'} does not state its sizes: {error!r}") from None
    assert isinstance(found, Network)
    return found


def widest(strategy: Strategy) -> tuple[str, int]:
    """Return the axis with the largest degree, and the degree, for messages about all ranks."""
    return max(strategy.degrees().items(), key=lambda it: it[1])
