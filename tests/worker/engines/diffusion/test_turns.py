"""The order of work: priority, deadlines, what ends soonest; and a fair share for everybody, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.worker.engines.diffusion.driver import Bench, alone

LONG: dict[str, Any] = {"steps": 50, "width": 128}
SHORT: dict[str, Any] = {"steps": 4}
"""Two sizes: these share no forward."""


def took(image: dict[str, Any]) -> float:
    """The time of a request alone."""
    return alone(1, **image).clock.now


def test_a_short_picture_beside_a_long_one_takes_its_own_time_and_a_step() -> None:
    bench = Bench()
    bench.admit(0, **LONG)
    bench.run(lambda: bench.steps_of(0) == 10)
    step = bench.toy.costs.forward + 2 * bench.toy.costs.row
    begin = bench.clock.now
    bench.admit(1, **SHORT)
    bench.step()
    bench.run(lambda: 1 in bench.ends)
    assert bench.ends[1] - begin <= 1.2 * took(SHORT) + step
    bench.run()
    assert bench.clock.now - begin <= took(SHORT) + took(LONG)


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_a_long_picture_beside_a_closed_loop_of_short_ones_ends_within_four_times_its_own(clients: int) -> None:
    bench = Bench()
    keys = iter(range(1, 10_000))
    bench.admit(0, **LONG)
    for _ in range(clients):
        bench.admit(next(keys), **SHORT)

    def loop() -> bool:
        while sum(1 for key in bench.engine._table.requests if key) < clients:
            bench.admit(next(keys), **SHORT)
        return 0 in bench.ends

    bench.run(loop)
    assert bench.ends[0] <= 4 * took(LONG)
    assert bench.ends[0] > 2 * took(LONG), "the short ones come first most of the time"


def test_short_pictures_in_a_closed_loop_beside_a_long_one_are_not_starved_either() -> None:
    bench = Bench()
    bench.admit(0, **LONG)
    times: list[float] = []
    key, begin = 1, 0.0
    bench.admit(1, **SHORT)
    while 0 not in bench.ends:
        bench.step()
        if key in bench.ends:
            times.append(bench.clock.now - begin)
            key, begin = key + 1, bench.clock.now
            bench.admit(key, **SHORT)
    assert max(times) <= 2.5 * took(SHORT)


def test_pictures_of_many_unlike_sizes_all_end() -> None:
    bench = Bench()
    for key in range(12):
        bench.admit(key, steps=20, width=64 + 8 * key)
    bench.run()
    assert sorted(bench.out.ended) == list(range(12))


def test_the_more_urgent_priority_goes_first() -> None:
    bench = Bench()
    bench.admit(0, steps=10, width=128)
    bench.run(lambda: bench.steps_of(0) == 1)
    bench.admit(1, steps=20, width=96, priority=-1)
    bench.admit(2, steps=2, priority=1)
    bench.run()
    assert bench.out.ended == [1, 0, 2]


def test_a_newcomer_of_a_lower_priority_is_not_encoded_between_the_steps_of_a_higher_one() -> None:
    bench = Bench()
    bench.admit(0, steps=10)
    bench.run(lambda: bench.steps_of(0) == 1)
    bench.admit(1, steps=10, priority=1)
    bench.toy.units.clear()
    bench.run(lambda: 0 in bench.ends)
    assert all(what != "encode" for what, _ in bench.toy.units)


def test_a_low_priority_beside_an_endless_loop_of_a_higher_one_ends() -> None:
    bench = Bench()
    keys = iter(range(1, 10_000))
    bench.admit(0, steps=10, width=128, priority=2)

    def loop() -> bool:
        while len(bench.engine._table.requests) < 2:
            bench.admit(next(keys), **SHORT)
        return 0 in bench.ends

    bench.run(loop)
    assert 0 in bench.ends


def test_a_picture_whose_deadline_is_near_goes_first() -> None:
    def end(deadline_s: float | None) -> float:
        bench = Bench()
        bench.admit(0, steps=6, width=128)  # would end sooner
        bench.admit(1, steps=10, width=96, deadline_s=deadline_s)
        bench.run()
        return bench.ends[1]

    last = end(None)
    assert end(0.75 * last) <= 0.75 * last
    assert end(100 * last) == last, "a deadline far away needs no hurry"
    assert end(0.1 * last) == last, "a deadline that is lost by far costs nobody else's"


def test_a_long_decoding_in_slices_leaves_others_their_share() -> None:
    bench = Bench()
    bench.toy.plan.decode_slices = 100
    bench.toy.costs.decode = 100.0
    bench.admit(0, steps=1)
    bench.run(lambda: bench.toy.units[-1][0] == "decode" if bench.toy.units else False)
    bench.toy.plan.decode_slices = 1
    bench.toy.costs.decode = 1.0
    bench.admit(1, steps=4, width=128)
    bench.run(lambda: 1 in bench.ends)
    assert 0 not in bench.ends


def test_runnable_costs_no_walk_over_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("a walk")

        values = keys = items = __iter__  # type: ignore[assignment]

    bench = Bench()
    bench.admit(0)
    table = bench.engine._table
    table.active, table.requests = Table(table.active), Table(table.requests)
    assert bench.engine.runnable
