"""Every family equals diffusers' own pipeline, alone and among others, and the comparison finds planted faults."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.diffusion.cases import all_cases
from tests.models.diffusion.parity import FAULTS, TOLERANCE, Case, Driven, Reference, Trace, difference
from tests.models.diffusion.table import documented, row_of

LEAVE = (1, 7)
"""The orders that are aborted, among the others."""

pytestmark = [pytest.mark.slow, pytest.mark.torch]


class Compared:
    """A case: the engine, the reference, and the eight orders among each other, computed once."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.driven = Driven(case, folder)
        self.reference = Reference(case, folder)
        self.expected = [self.reference.trace(order) for order in case.orders]
        self.among = self.mixed()
        self.rows = self.driven.rows_per_forward
        self.calls = len(self.driven.calls)
        self.forwards = len(self.driven.batches)

    def mixed(self) -> list[Trace]:
        """Return the orders among each other: they join at random steps, and two leave early."""
        return self.driven.run(self.case.orders, random.Random(5), leave=LEAVE)

    def error(self, traces: list[Trace]) -> float:
        """Return the largest difference to the reference."""
        return max(
            trace.differs(expected, whole=number not in LEAVE)
            for number, (trace, expected) in enumerate(zip(traces, self.expected, strict=True))
        )


@pytest.fixture(scope="module", params=all_cases(), ids=lambda case: case.name)
def compared(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Compared:
    return Compared(request.param, tiny_model(request.param.checkpoint))


@pytest.fixture
def thorough(compared: Compared) -> Compared:
    """A case that is compared in every way: the first mode of its adapter."""
    if compared.case.further:
        pytest.skip("a further mode of an adapter is compared among others alone")
    return compared


def test_alone_every_step_equals_the_pipeline(thorough: Compared) -> None:
    for order, expected in zip(thorough.case.orders[::3], thorough.expected[::3], strict=True):
        (trace,) = thorough.driven.run([order])
        assert trace.differs(expected) <= TOLERANCE


def test_among_others_that_join_and_leave_every_step_equals_the_pipeline(compared: Compared) -> None:
    assert compared.error(compared.among) <= TOLERANCE
    for number in LEAVE:
        assert 0 < len(compared.among[number].predictions) < len(compared.expected[number].predictions)


def test_orders_share_forwards(compared: Compared) -> None:
    assert compared.calls == compared.forwards  # one call of the denoiser for each forward
    assert compared.rows >= compared.case.rows


def test_other_prompts_and_seeds_make_other_pictures(thorough: Compared) -> None:
    order = thorough.case.orders[0]
    others = [dataclasses.replace(order, prompt="two cars"), dataclasses.replace(order, seed=order.seed + 1)]
    for other in others:
        (trace,) = thorough.driven.run([other])
        assert difference(trace.latents[-1], thorough.expected[0].latents[-1]) > 100 * TOLERANCE


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(thorough: Compared, fault: str) -> None:
    if not thorough.case.step_batched:
        pytest.skip("pictures share nothing")
    if fault == "swapped-branches" and not thorough.case.negative:
        pytest.skip("the family's guidance takes no second branch")
    with contextlib.contextmanager(FAULTS[fault])(thorough.driven):
        planted = thorough.mixed()
    assert thorough.error(planted) > 10 * TOLERANCE
    (whole,) = thorough.driven.run(thorough.case.orders[:1])
    assert whole.differs(thorough.expected[0]) <= TOLERANCE  # the fault is gone


def test_the_table_of_families_says_what_was_measured(compared: Compared) -> None:
    row = documented(compared.case)
    assert compared.error(compared.among) <= 10 * row.error
    measured = row_of(compared.case, row.error, compared.rows)
    assert dataclasses.replace(row, rows=measured.rows) == measured
    assert abs(float(row.rows) - compared.rows) <= 1.5  # the engine's turns may change a little
