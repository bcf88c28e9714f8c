"""Admission by bytes: what never fits is refused at once, what fits later waits, and the budget is never exceeded."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.worker.engines.diffusion.driver import Bench, alone, check_alone

from omni_actors.platforms.runtime import Memory
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.engines.diffusion.memory import usable_bytes

ONE = 26 * 64
"""Bytes of a picture of 64 x 64 pixels at its peak, which is its decoding."""


def test_a_picture_that_never_fits_is_refused_before_any_work() -> None:
    bench = Bench(memory_bytes=ONE)
    with pytest.raises(OmniError) as refused:
        bench.admit(0, width=128)
    info = refused.value.info
    assert (info.status, info.param) == (400, "size")
    assert "128x64" in info.message
    assert bench.toy.units == []
    assert bench.counters()["requests"] == 0
    bench.admit(1)
    bench.run()
    assert bench.error(1) is None


def test_a_picture_that_fits_later_waits() -> None:
    bench = Bench(memory_bytes=ONE)
    for key in range(3):
        bench.admit(key)
    bench.run()
    assert bench.out.ended == [0, 1, 2]
    for key in range(3):
        check_alone(bench, key)
    assert bench.toy.peak <= ONE
    bench.check_empty()


@pytest.mark.parametrize("seed", range(8))
def test_the_peak_never_exceeds_the_budget(seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(memory_bytes=5 * ONE)
    bench.toy.plan.together = seed % 2 == 0
    bench.toy.plan.encode_slices = chance.randrange(1, 4)
    bench.toy.plan.decode_slices = chance.randrange(1, 4)
    images: list[dict[str, Any]] = [
        {
            "steps": chance.randrange(1, 9),
            "width": chance.choice([64, 96, 128, 256]),
            "guidance": chance.choice([None, 3.0]),
            "n": chance.choice([1, 1, 3]),
            "previews": chance.choice([0, 1]),
        }
        for _ in range(50)
    ]
    waiting = list(enumerate(images))
    while waiting or bench.engine.runnable:
        if waiting and (chance.random() < 0.3 or not bench.engine.runnable):
            key, image = waiting.pop(0)
            bench.admit(key, **image)
        else:
            assert bench.step()
    assert len(bench.out.ended) == 50
    assert 0 < bench.toy.peak <= 5 * ONE
    for key in chance.sample(range(50), 5):
        check_alone(bench, key, **images[key])
    bench.check_empty()


def test_small_pictures_do_not_wait_behind_a_large_one_that_does_not_fit_yet() -> None:
    bench = Bench(memory_bytes=4 * ONE)
    bench.admit(0, steps=30)
    bench.run(lambda: bench.steps_of(0) == 1)
    bench.admit(1, steps=4, width=256)
    bench.admit(2, steps=4)
    bench.run(lambda: 2 in bench.ends)
    assert bench.steps_of(1) == 0
    bench.run()
    assert bench.toy.peak <= 4 * ONE


def test_a_large_picture_is_not_starved_by_small_ones() -> None:
    """The small ones come in a closed loop and would fit beside each other for ever."""
    bench = Bench(memory_bytes=4 * ONE)
    keys = iter(range(1, 10_000))
    large: dict[str, Any] = {"steps": 10, "width": 256}
    for _ in range(3):
        bench.admit(next(keys), steps=6)
    bench.admit(0, **large)

    def loop() -> bool:
        while sum(1 for key in bench.engine._table.requests if key) < 3:
            bench.admit(next(keys), steps=6)
        return 0 in bench.ends

    bench.run(loop)
    assert bench.ends[0] <= 6 * alone(0, **large).clock.now
    assert bench.toy.peak <= 4 * ONE


def test_pictures_beyond_the_memory_of_a_step_take_turns() -> None:
    """The state of all fits, the peaks of their steps together do not."""
    bench = Bench(memory_bytes=10 * 64 * 8 + 16 * 64 + 1)
    for key in range(8):
        bench.admit(key, steps=5, guidance=3.0)
    bench.run()
    assert bench.toy.peak <= 10 * 64 * 8 + 16 * 64 + 1
    for key in range(8):
        check_alone(bench, key, steps=5, guidance=3.0)


def test_an_interrupted_decoding_keeps_its_memory() -> None:
    bench = Bench(memory_bytes=2 * ONE)
    bench.toy.plan.decode_slices = 50
    bench.toy.costs.decode = 50.0
    bench.admit(0, steps=1)
    bench.run(lambda: bool(bench.toy.units) and bench.toy.units[-1][0] == "decode")
    bench.admit(1, steps=3)
    bench.run()
    assert bench.toy.peak <= 2 * ONE
    assert sorted(bench.out.ended) == [0, 1]
    bench.check_empty()


def test_the_pictures_of_one_request_are_admitted_one_by_one() -> None:
    bench = Bench(memory_bytes=ONE)
    bench.admit(0, n=4)
    bench.run()
    assert len(bench.pictures(0)) == 4
    assert bench.toy.peak <= ONE


def test_the_budget_is_what_the_device_has_free_after_loading() -> None:
    assert usable_bytes(Memory(1000, 500)) == 450
    assert usable_bytes(Memory(None, None)) is None
    bench = Bench(memory_bytes=None)
    memory = bench.engine._table.memory
    free = bench.engine._faults.runtime.memory().free
    assert (memory.total is None) == (free is None)
    bench.admit(0)
    bench.run()
    assert bench.error(0) is None
