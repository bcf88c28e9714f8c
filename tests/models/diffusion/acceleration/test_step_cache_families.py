"""Step caches in every family that has them: with and without a cache in one batch, and beside diffusers' hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diffusers.hooks import FirstBlockCacheConfig
from tests.models.diffusion.cases import all_cases
from tests.models.diffusion.orders import Order
from tests.models.diffusion.parity import TOLERANCE, Case, Driven, Reference

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ALTERNATING = {"threshold": 1e9, "max_skips": 1}
"""Settings with which every second step is skipped, whatever its numbers."""


CACHED = ("flux", "flux-kontext", "flux2-klein", "ovis-image", "pixart-sigma", "qwen-image", "sd3", "z-image")
"""Tiny checkpoints of the families that have step caches."""

HOOKED = ("flux", "qwen-image")
"""Those of them with which diffusers' hook works."""


def cases_of(checkpoints: tuple[str, ...]) -> list[Case]:
    """Return the first case of each checkpoint, by name."""
    found = {case.checkpoint: case for case in reversed(all_cases()) if case.checkpoint in checkpoints}
    return [found[name] for name in sorted(found)]


def with_cache(order: Order, cache: dict[str, float]) -> Order:
    fields: dict[str, Any] = {**order.fields, "cache": cache}
    return replace(order, fields=fields)


@pytest.fixture(scope="module", params=cases_of(CACHED), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_with_and_without_a_cache_in_one_batch(case: Case, tiny_model: Callable[[str], Path]) -> None:
    driven = Driven(case, tiny_model(case.checkpoint))
    last = min(1, driven.adapter.acceleration.cache.blocks - 2)
    orders = [
        with_cache(case.orders[0], ALTERNATING),
        case.orders[1],
        with_cache(case.orders[2], {**ALTERNATING, "last_blocks": last, "warmup": 1}),
    ]
    alone = [driven.run([order])[0] for order in orders]
    plain = driven.run([case.orders[0]])[0]
    together = driven.run(orders)
    for number, (trace, expected) in enumerate(zip(together, alone, strict=True)):
        assert trace.differs(expected) <= TOLERANCE
        assert trace.outcome is not None
        assert trace.outcome.usage is not None
        assert (trace.outcome.usage.skipped_steps > 0) == (number != 1)
    assert alone[0].differs(plain) > 10 * TOLERANCE


@pytest.mark.parametrize("case", cases_of(HOOKED), ids=lambda case: case.name)
def test_one_picture_equals_the_first_block_cache_of_diffusers(case: Case, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(case.checkpoint)
    driven, reference = Driven(case, folder), Reference(case, folder)
    for threshold in (0.3, 0.6):
        order = case.orders[1]
        reference._pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))
        expected = reference._made(order)
        reference._pipe.transformer.disable_cache()
        (trace,) = driven.run([with_cache(order, {"threshold": threshold})])
        assert trace.differs(expected) <= TOLERANCE
