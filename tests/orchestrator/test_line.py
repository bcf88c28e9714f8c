"""The line of waiting requests: whose turn it is, by level, tenant and arrival."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.orchestrator.line import Line, Waiter

AGEING_S = 10.0


def serve(line: Line[Waiter], now: float = 0.0, fits: object = None) -> Waiter:
    first = line.heads(now, lambda waiter: fits is None or waiter.shape == fits)[0]
    line.leave(first, served=True)
    return first


def order(line: Line[Waiter], now: float = 0.0) -> list[Waiter]:
    return [serve(line, now) for _ in range(len(line))]


def joined(line: Line[Waiter], *waiters: Waiter) -> list[Waiter]:
    for waiter in waiters:
        line.join(waiter)
    return list(waiters)


def waiter(priority: int = 0, tenant: str = "", since: float = 0.0, shape: str = "s", size: int = 0) -> Waiter:
    return Waiter(shape, priority, tenant, since, size)


def test_the_lower_priority_goes_first_and_within_one_who_came_first() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    a, b, c, d = joined(line, waiter(1), waiter(0), waiter(-3), waiter(0))
    assert order(line) == [c, b, d, a]


def test_a_level_is_gained_for_each_ageing_time() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    late = waiter(2, since=0.0)
    line.join(late)
    for second in range(60):
        line.join(waiter(0, since=float(second)))
        if serve(line, now=float(second)) is late:
            break
    # At 20 s it is of the same level, and has waited longer.
    assert second == 20


def test_tenants_of_one_priority_take_turns_whoever_floods() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    flood = joined(line, *(waiter(tenant="a") for _ in range(100)))
    assert [serve(line) for _ in range(3)] == flood[:3]
    few = joined(line, *(waiter(tenant="b") for _ in range(3)))
    served = [serve(line) for _ in range(6)]
    assert [it for it in served if it.tenant == "b"] == few
    assert [it.tenant for it in served].count("a") == 3


def test_a_flood_that_has_aged_is_no_excuse_to_skip_a_turn() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    joined(line, *(waiter(tenant="a", shape="spoken") for _ in range(100)))
    (new,) = joined(line, waiter(tenant="b", since=300.0))
    serve(line, now=300.0)
    assert serve(line, now=300.0) is new


def test_turns_are_taken_across_rows() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    joined(line, *(waiter(tenant="a", shape=f"s{i % 3}") for i in range(30)))
    joined(line, *(waiter(tenant="b", shape="s1") for _ in range(10)))
    assert [it.tenant for it in order(line)[:20]].count("b") == 10


def test_one_that_cannot_be_next_lends_its_age_to_nobody() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    joined(line, waiter(5, shape="blocked"))
    (young,) = joined(line, waiter(5, since=100.0, shape="open"))
    (urgent,) = joined(line, waiter(0, since=100.0, shape="open"))
    assert serve(line, now=100.0, fits="open") is urgent
    assert young in line


def test_who_has_left_is_forgotten_also_in_the_middle_of_the_line() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    all_of_them = joined(line, *(waiter(tenant=f"t{i % 3}", size=10) for i in range(90)))
    for it in all_of_them[1::2]:
        line.leave(it)
        line.leave(it)
    assert len(line) == 45
    assert line.size == 450
    assert set(order(line)) == set(all_of_them[::2])
    assert len(line) == 0
    assert line.size == 0
    assert not line._classes


def test_those_who_come_and_go_behind_one_who_stays_take_no_room() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    line.join(waiter())
    for _ in range(10_000):
        it = waiter()
        line.join(it)
        line.leave(it)
    (row,) = next(iter(line._classes.values())).rows.values()
    assert len(row.heap) < 100


def test_when_the_line_is_too_long_the_least_urgent_gives_way_then_the_greediest_then_the_newcomer() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    a1, a2, b1 = joined(line, waiter(tenant="a"), waiter(tenant="a"), waiter(tenant="b"))
    (late,) = joined(line, waiter(1, tenant="c"))
    (new,) = joined(line, waiter(tenant="d"))
    assert line.last(new, 0.0) is late
    line.leave(late)
    assert line.last(new, 0.0) is a2
    line.leave(a2)
    assert line.last(new, 0.0) is new
    assert a1 in line
    assert b1 in line


def test_one_that_has_aged_to_the_newcomers_level_does_not_give_way() -> None:
    line: Line[Waiter] = Line(AGEING_S)
    joined(line, waiter(1, tenant="a", since=0.0))
    (new,) = joined(line, waiter(0, tenant="b", since=AGEING_S))
    assert line.last(new, AGEING_S) is new


joins = st.tuples(st.integers(-2, 2), st.sampled_from("abc"), st.sampled_from("xyz"))


@settings(deadline=None)
@given(st.lists(st.one_of(joins, st.integers(0, 200)), max_size=200))
def test_nobody_is_lost_or_served_twice(script: list[tuple[int, str, str] | int]) -> None:
    """A number takes the one at that place out of the line (modulo), or, if even, serves the next."""
    line: Line[Waiter] = Line(AGEING_S)
    waiting: list[Waiter] = []
    for now, step in enumerate(script):
        if isinstance(step, tuple):
            priority, tenant, shape = step
            waiting += joined(line, waiter(priority, tenant, float(now), shape))
        elif waiting and step % 2:
            line.leave(waiting.pop(step % len(waiting)))
        elif waiting:
            waiting.remove(serve(line, float(now)))
        assert len(line) == len(waiting)
        assert set(line) == set(waiting)
    assert set(order(line)) == set(waiting)
    assert not line._classes
