"""Mailboxes: order, the bound, and the signals and stops outside the bound."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.actors.errors import ActorStopped, MailboxFull
from omni_actors.actors.mailbox import Mailbox

KEYS = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers()),
    st.tuples(st.just("signal"), st.tuples(KEYS, st.integers())),
    st.tuples(st.just("take"), st.integers(1, 4)),
)


@given(capacity=st.integers(1, 5), steps=st.lists(STEPS, max_size=60))
async def test_order_bound_and_merging_against_a_model(capacity: int, steps: list[tuple[str, object]]) -> None:
    mailbox = Mailbox("m", capacity)
    messages: list[object] = []
    signals: dict[object, object] = {}
    for step, argument in steps:
        if step == "put":
            if len(messages) == capacity:
                with pytest.raises(MailboxFull):
                    mailbox.put(argument)
            else:
                mailbox.put(argument)
                messages.append(argument)
        elif step == "signal":
            assert isinstance(argument, tuple)
            mailbox.signal(*argument)
            signals[argument[0]] = argument[1]
        else:
            if messages or signals:
                await mailbox.wait()  # returns at once
            assert mailbox.signals == signals
            assert list(mailbox.signals) == list(signals)
            mailbox.signals.clear()
            signals.clear()
            assert isinstance(argument, int)
            for _ in range(min(argument, len(messages))):
                assert mailbox.queue.popleft() == messages.pop(0)
        assert len(mailbox.queue) <= capacity
        assert len(mailbox.signals) <= 3


async def test_wait_wakes_for_a_message_a_signal_and_a_stop(autojump_clock: trio.testing.MockClock) -> None:
    every: list[Callable[[Mailbox], None]] = [lambda m: m.put(1), lambda m: m.signal("k", 1), lambda m: m.stop()]
    for news in every:
        mailbox = Mailbox("m", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailbox.wait)
            await trio.testing.wait_all_tasks_blocked()
            news(mailbox)
            mailbox.signal("k", 2)  # a second one before the receiver runs does no harm


async def test_a_cancelled_wait_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    mailbox = Mailbox("m", 3)
    with trio.move_on_after(1):
        await mailbox.wait()
    mailbox.put(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.wait()
    assert scope.cancelled_caught
    assert list(mailbox.queue) == [1]


async def test_only_one_task_receives(autojump_clock: trio.testing.MockClock) -> None:
    mailbox = Mailbox("m", 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await mailbox.wait()
        nursery.cancel_scope.cancel()


def test_signals_and_stop_pass_a_full_mailbox() -> None:
    mailbox = Mailbox("m", 1)
    mailbox.put("message")
    with pytest.raises(MailboxFull) as caught:
        mailbox.put("another")
    assert (caught.value.name, caught.value.capacity) == ("m", 1)
    mailbox.signal("ack", 3)
    mailbox.signal("ack", 7)
    mailbox.stop()
    assert mailbox.signals == {"ack": 7}
    assert mailbox.stopping


def test_a_closed_mailbox_refuses_messages_and_ignores_signals() -> None:
    mailbox = Mailbox("m", 2)
    mailbox.put(1)
    mailbox.signal("k", 1)
    assert mailbox.close() == [1]
    assert mailbox.closed
    with pytest.raises(ActorStopped):
        mailbox.put(2)
    mailbox.signal("k", 2)
    assert not mailbox.signals


def test_a_mailbox_of_no_capacity_is_refused() -> None:
    with pytest.raises(ValueError):
        Mailbox("m", 0)
