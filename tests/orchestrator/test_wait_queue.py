"""The queue of waiting requests: whose turn it is, by level, tenant and arrival."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.orchestrator.wait_queue import QueuedRequest, WaitQueue

AGEING_S = 10.0


def serve(queue: WaitQueue[QueuedRequest], now: float = 0.0, fits: object = None) -> QueuedRequest:
    first = queue.heads(now, lambda request: fits is None or request.request_class == fits)[0]
    queue.remove(first, served=True)
    return first


def order(queue: WaitQueue[QueuedRequest], now: float = 0.0) -> list[QueuedRequest]:
    return [serve(queue, now) for _ in range(len(queue))]


def joined(queue: WaitQueue[QueuedRequest], *requests: QueuedRequest) -> list[QueuedRequest]:
    for request in requests:
        queue.enqueue(request)
    return list(requests)


def queued(
    priority: int = 0, tenant: str = "", since: float = 0.0, request_class: str = "s", size: int = 0
) -> QueuedRequest:
    return QueuedRequest(request_class, priority, tenant, since, size)


def test_the_lower_priority_goes_first_and_within_one_who_came_first() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    a, b, c, d = joined(queue, queued(1), queued(0), queued(-3), queued(0))
    assert order(queue) == [c, b, d, a]


def test_a_level_is_gained_for_each_ageing_time() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    late = queued(2, since=0.0)
    queue.enqueue(late)
    for second in range(60):
        queue.enqueue(queued(0, since=float(second)))
        if serve(queue, now=float(second)) is late:
            break
    # At 20 s it is of the same level, and has waited longer.
    assert second == 20


def test_tenants_of_one_priority_take_turns_whoever_floods() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    flood = joined(queue, *(queued(tenant="a") for _ in range(100)))
    assert [serve(queue) for _ in range(3)] == flood[:3]
    few = joined(queue, *(queued(tenant="b") for _ in range(3)))
    served = [serve(queue) for _ in range(6)]
    assert [it for it in served if it.tenant == "b"] == few
    assert [it.tenant for it in served].count("a") == 3


def test_a_flood_that_has_aged_is_no_excuse_to_skip_a_turn() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    joined(queue, *(queued(tenant="a", request_class="spoken") for _ in range(100)))
    (new,) = joined(queue, queued(tenant="b", since=300.0))
    serve(queue, now=300.0)
    assert serve(queue, now=300.0) is new


def test_turns_are_taken_across_rows() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    joined(queue, *(queued(tenant="a", request_class=f"s{i % 3}") for i in range(30)))
    joined(queue, *(queued(tenant="b", request_class="s1") for _ in range(10)))
    assert [it.tenant for it in order(queue)[:20]].count("b") == 10


def test_one_that_cannot_be_next_lends_its_age_to_nobody() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    joined(queue, queued(5, request_class="blocked"))
    (young,) = joined(queue, queued(5, since=100.0, request_class="open"))
    (urgent,) = joined(queue, queued(0, since=100.0, request_class="open"))
    assert serve(queue, now=100.0, fits="open") is urgent
    assert young in queue


def test_who_has_left_is_forgotten_also_in_the_middle_of_the_line() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    all_of_them = joined(queue, *(queued(tenant=f"t{i % 3}", size=10) for i in range(90)))
    for it in all_of_them[1::2]:
        queue.remove(it)
        queue.remove(it)
    assert len(queue) == 45
    assert queue.size == 450
    assert set(order(queue)) == set(all_of_them[::2])
    assert len(queue) == 0
    assert queue.size == 0
    assert not queue.priorities


def test_those_who_come_and_go_behind_one_who_stays_take_no_room() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    queue.enqueue(queued())
    for _ in range(10_000):
        it = queued()
        queue.enqueue(it)
        queue.remove(it)
    assert sum(type(it) is QueuedRequest for it in gc.get_objects()) < 100


def test_when_the_line_is_too_long_the_least_urgent_gives_way_then_the_greediest_then_the_newcomer() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    a1, a2, b1 = joined(queue, queued(tenant="a"), queued(tenant="a"), queued(tenant="b"))
    (late,) = joined(queue, queued(1, tenant="c"))
    (new,) = joined(queue, queued(tenant="d"))
    assert queue.to_evict(new, 0.0) is late
    queue.remove(late)
    assert queue.to_evict(new, 0.0) is a2
    queue.remove(a2)
    assert queue.to_evict(new, 0.0) is new
    assert a1 in queue
    assert b1 in queue


def test_one_that_has_aged_to_the_newcomers_level_does_not_give_way() -> None:
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    joined(queue, queued(1, tenant="a", since=0.0))
    (new,) = joined(queue, queued(0, tenant="b", since=AGEING_S))
    assert queue.to_evict(new, AGEING_S) is new


joins = st.tuples(st.integers(-2, 2), st.sampled_from("abc"), st.sampled_from("xyz"))


@settings(deadline=None)
@given(st.lists(st.one_of(joins, st.integers(0, 200)), max_size=200))
def test_nobody_is_lost_or_served_twice(script: list[tuple[int, str, str] | int]) -> None:
    """A number takes the one at that place out of the queue (modulo), or, if even, serves the next."""
    queue: WaitQueue[QueuedRequest] = WaitQueue(AGEING_S)
    waiting: list[QueuedRequest] = []
    for now, step in enumerate(script):
        if isinstance(step, tuple):
            priority, tenant, request_class = step
            waiting += joined(queue, queued(priority, tenant, float(now), request_class))
        elif waiting and step % 2:
            queue.remove(waiting.pop(step % len(waiting)))
        elif waiting:
            waiting.remove(serve(queue, float(now)))
        assert len(queue) == len(waiting)
        assert set(queue) == set(waiting)
    assert set(order(queue)) == set(waiting)
    assert not queue.priorities
