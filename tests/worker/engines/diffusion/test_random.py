"""Random schedules of requests, steps, aborts, faults and credits: every request ends once, and as it would alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.worker.engines.diffusion.driver import Bench, check_alone

from omni_actors.protocol.errors import OmniError

WIDEST = 384
BUDGET = 26 * WIDEST
"""Bytes: a picture takes 26 for each pixel of its width, at its peak."""

IMAGE = st.fixed_dictionaries(
    {
        "steps": st.integers(1, 8),
        "n": st.integers(1, 3),
        "width": st.sampled_from([64, 64, 128, 256, 512]),
        "guidance": st.sampled_from([None, 3.0]),
        "previews": st.sampled_from([0, 1, 3]),
    }
)
FAULT = st.sampled_from(
    [None] * 6 + ["encode", "begin", "batch_key", "rows", "predict", "advance", "nan", "decode", "wrong", "preview"]
)


class Schedules(RuleBasedStateMachine):
    """The engine with the toy model, and what is known of each request."""

    @initialize(
        together=st.booleans(),
        slices=st.integers(1, 3),
        join=st.sampled_from([True, True, True, False]),
        rows=st.integers(1, 9),
        most=st.sampled_from([1 << 30, 1 << 30, 2]),
    )
    def start(self, together: bool, slices: int, join: bool, rows: int, most: int) -> None:
        self.bench = Bench(memory_bytes=BUDGET, max_rows=rows, join=join)
        plan = self.bench.toy.plan
        plan.together, plan.encode_slices, plan.decode_slices, plan.most = together, slices, slices, most
        self.images: dict[int, dict[str, Any]] = {}
        self.aborted: set[int] = set()

    @rule(image=IMAGE, fault=FAULT, priority=st.integers(-1, 1), deadline_s=st.sampled_from([None, 20.0]))
    def admit(self, image: dict[str, Any], fault: str | None, priority: int, deadline_s: float | None) -> None:
        key = len(self.images)
        if fault is not None:
            self.bench.toy.plan.faults[key] = fault
        self.images[key] = image
        if image["width"] <= WIDEST:
            self.bench.admit(key, priority=priority, deadline_s=deadline_s, **image)
            return
        with pytest.raises(OmniError):
            self.bench.admit(key, **image)
        self.aborted.add(key)
        self.bench.out.over.add(key)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.bench.engine.runnable:
                self.bench.step()

    @rule(place=st.integers(0, 50))
    def abort(self, place: int) -> None:
        here = sorted(self.bench.engine._table.requests)
        if here:
            key = here[place % len(here)]
            self.bench.abort(key)
            self.aborted.add(key)

    @rule(place=st.integers(0, 50), count=st.integers(0, 3))
    def credit(self, place: int, count: int) -> None:
        here = sorted(self.bench.engine._table.requests)
        if here:
            self.bench.out.left[here[place % len(here)]] = count

    @invariant()
    def the_memory_is_within_its_budget(self) -> None:
        if hasattr(self, "bench"):
            assert self.bench.toy.peak <= BUDGET

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.out.left.clear()
        bench.run()
        bench.check_empty()
        for key, image in self.images.items():
            if key in self.aborted:
                continue
            outcome = bench.out.outcomes[key]
            fault = bench.toy.plan.faults.get(key)
            assert (outcome.usage is None) != (outcome.error is None)
            if outcome.error is None:
                check_alone(bench, key, **image)
            else:
                assert fault is not None
                assert fault != "preview" or image["previews"]


Schedules.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSchedules = Schedules.TestCase
