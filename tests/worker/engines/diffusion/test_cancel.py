"""Requests that end early: from then on no work is done for them, nothing of them is left, and neighbours go on."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.worker.engines.diffusion.driver import Bench, check_alone


def work_of(bench: Bench, key: int) -> int:
    """Units of work that were done for a request."""
    return sum(any(k == key for k, _ in shared) for _, shared in bench.toy.units)


def mixed(chance: random.Random) -> dict[str, Any]:
    return {
        "steps": chance.randrange(1, 12),
        "width": chance.choice([64, 128]),
        "guidance": chance.choice([None, 4.0]),
        "n": chance.choice([1, 1, 2]),
        "previews": chance.choice([0, 2]),
    }


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_clients_that_leave_at_random_moments_cost_no_further_work(seed: int, together: bool) -> None:
    chance = random.Random(seed)
    bench = Bench(max_rows=8)
    plan = bench.toy.plan
    plan.together, plan.encode_slices, plan.decode_slices = together, 3, 3
    images = {key: mixed(chance) for key in range(100)}
    staying = set(range(0, 100, 10))
    waiting, here = list(images), set[int]()
    done: dict[int, int] = {}
    places = set[str]()
    while waiting or bench.engine.runnable:
        here -= bench.out.over
        leaving = sorted(here - staying)
        if waiting and (len(here) < 8 or not bench.engine.runnable):
            key = waiting.pop(0)
            bench.admit(key, **images[key])
            here.add(key)
        elif leaving and chance.random() < 0.2:
            key = chance.choice(leaving)
            places |= {it.phase.value for it in bench.engine._table.requests[key].cursors}
            bench.abort(key)
            done[key] = work_of(bench, key)
        else:
            assert bench.step()
    assert len(done) >= 10
    assert {"encode", "denoise", "decode"} <= places
    for key, units in done.items():
        assert work_of(bench, key) == units
    for key in staying:
        check_alone(bench, key, **images[key])
    assert bench.counters()["aborted_total"] == len(done)
    bench.check_empty()


@pytest.mark.parametrize("place", ["encode", "denoise", "decode"])
def test_a_request_alone_gives_everything_back_wherever_it_ends(place: str) -> None:
    bench = Bench()
    bench.toy.plan.encode_slices = bench.toy.plan.decode_slices = 3
    bench.admit(0, n=2)
    bench.run(lambda: bench.engine._table.requests[0].cursors[0].phase.value == place)
    bench.step()
    bench.abort(0)
    bench.check_empty()
    assert bench.step() is False


def test_an_unknown_request_is_ignored() -> None:
    bench = Bench()
    bench.engine.abort(5)
    assert bench.engine.feed(5, "text", None, True)


def test_a_request_that_waits_for_a_credit_can_end() -> None:
    bench = Bench()
    bench.admit(0, steps=1, layers=3)
    bench.out.left[0] = 1
    for _ in range(10):
        bench.step()
    assert len(bench.payloads(0)) == 1
    bench.abort(0)
    bench.check_empty()


def test_closing_the_engine_drops_all_requests() -> None:
    bench = Bench()
    bench.toy.plan.encode_slices = 3
    for key in range(3):
        bench.admit(key)
        bench.step()
    bench.engine.close()
    bench.check_empty()
