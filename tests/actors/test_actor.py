"""The promises of tell and ask, under crashes and cancellation too, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    ActorStopped,
    AskCycle,
    Down,
    MailboxFull,
    Refusal,
    Reply,
    Restarts,
    open_supervisor,
)
from omni_actors.actors.cell import BATCH, TEARDOWN_S

Clock = trio.testing.MockClock


class Scripted(Actor[Any]):
    """An actor that logs its events. A message that is a function is called with the actor and awaited."""

    def __init__(self, log: list[Any] | None = None) -> None:
        self.log = [] if log is None else log

    async def setup(self) -> None:
        self.log.append("setup")

    async def receive(self, message: Any) -> Any:
        if callable(message):
            return await message(self)
        self.log.append(message)
        return message

    async def on_signal(self, key: Any, value: Any) -> None:
        self.log.append((key, value))

    async def teardown(self) -> None:
        self.log.append("teardown")


async def crash(actor: Scripted) -> None:
    raise ValueError("boom")


async def sleep_forever(actor: Scripted) -> None:
    actor.log.append("begun")
    try:
        await trio.sleep_forever()
    finally:
        actor.log.append("interrupted")


@asynccontextmanager
async def one(log: list[Any] | None = None, capacity: int = 256) -> AsyncIterator[ActorRef[Any]]:
    async with open_supervisor() as root:
        ref = root.start(lambda: Scripted(log), name="one", capacity=capacity)
        await ref.wait_ready()
        yield ref


# --- tell ------------------------------------------------------------------------------------------------------------


@given(bursts=st.lists(st.integers(1, 150), max_size=6))
async def test_messages_of_one_sender_arrive_in_order_each_once(bursts: list[int]) -> None:
    log: list[Any] = []
    sent = 0
    async with one(log, capacity=1000) as ref:
        for burst in bursts:
            for _ in range(burst):
                ref.tell(sent)
                sent += 1
            await trio.lowlevel.checkpoint()
        await ref.ask("last", within=5)
    assert log == ["setup", *range(sent), "last", "teardown"]


async def test_tell_fails_at_once_when_the_mailbox_is_full(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log, capacity=2) as ref:
        release = trio.Event()
        ref.tell(lambda actor: release.wait())
        await trio.testing.wait_all_tasks_blocked()
        ref.tell(1)
        ref.tell(2)
        assert ref.depth == 2
        with pytest.raises(MailboxFull):
            ref.tell(3)
        with pytest.raises(MailboxFull):
            await ref.ask(3, within=1)
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        ref.tell(4)
        await trio.testing.wait_all_tasks_blocked()
    assert log == ["setup", 1, 2, 4, "teardown"]


async def test_a_busy_actor_lets_others_run(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log, capacity=1000) as ref:
        for number in range(10 * BATCH):
            ref.tell(number)
        turns = 0
        while len(log) < 10 * BATCH:
            await trio.lowlevel.checkpoint()
            turns += 1
    assert 10 <= turns <= 13


# --- ask -------------------------------------------------------------------------------------------------------------


async def test_ask_returns_what_receive_returns(autojump_clock: Clock) -> None:
    async with one() as ref:
        assert await ref.ask("hello", within=1) == "hello"


async def test_a_refusal_is_an_answer_and_no_crash(autojump_clock: Clock) -> None:
    async def refuse(actor: Scripted) -> None:
        raise Refusal({"code": 7})

    log: list[Any] = []
    async with one(log) as ref:
        with pytest.raises(Refusal) as caught:
            await ref.ask(refuse, within=1)
        assert caught.value.value == {"code": 7}
        ref.tell(refuse)
        assert await ref.ask("on", within=1) == "on"
    assert log == ["setup", "on", "teardown"]


async def test_an_ask_that_crashes_the_actor_raises_actor_crashed(autojump_clock: Clock) -> None:
    async with one() as ref:
        with pytest.raises(ActorCrashed, match="ValueError: boom") as caught:
            await ref.ask(crash, within=1)
        assert isinstance(caught.value.__cause__, ValueError)
        assert await ref.ask("again", within=1) == "again"


async def test_messages_behind_a_crashing_message_are_kept(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log) as ref:
        ref.tell(1)
        ref.tell(crash)
        ref.tell(2)
        ref.tell(3)
        assert await ref.ask("last", within=1) == "last"
    assert log == ["setup", 1, "teardown", "setup", 2, 3, "last", "teardown"]


async def test_the_deadline_of_an_ask_withdraws_it(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log) as ref:
        with pytest.raises(trio.TooSlowError):
            await ref.ask(sleep_forever, within=3)
        assert trio.current_time() == pytest.approx(3, abs=0.1)
        assert await ref.ask("next", within=1) == "next"
    assert log == ["setup", "begun", "interrupted", "next", "teardown"]


async def test_an_ask_withdrawn_in_the_mailbox_is_not_begun(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log) as ref:
        release = trio.Event()
        ref.tell(lambda actor: release.wait())
        with pytest.raises(trio.TooSlowError):
            await ref.ask("late", within=1)
        release.set()
        await ref.ask("next", within=1)
    assert log == ["setup", "next", "teardown"]


async def test_a_cancelled_ask_sends_nothing(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log) as ref:
        with trio.CancelScope() as scope:
            scope.cancel()
            await ref.ask("never", within=1)
        await ref.ask("next", within=1)
    assert log == ["setup", "next", "teardown"]


async def test_an_interrupt_that_comes_too_late_hits_no_other_message(autojump_clock: Clock) -> None:
    """The asker is cancelled in the same turn in which the handler's event is set."""
    log: list[Any] = []
    async with one(log) as ref:
        happened = trio.Event()

        async def wait(actor: Scripted) -> None:
            await happened.wait()
            actor.log.append("done")

        async def next_message(actor: Scripted) -> None:
            await trio.sleep(1)
            actor.log.append("next done")

        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def ask() -> None:
                with scope:
                    await ref.ask(wait, within=9)

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            ref.tell(next_message)
            happened.set()
            scope.cancel()
        await ref.ask("last", within=9)
    assert log[-3:] == ["next done", "last", "teardown"]


async def test_a_shielded_handler_is_not_interrupted(autojump_clock: Clock) -> None:
    log: list[Any] = []

    async def careful(actor: Scripted) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        actor.log.append("whole")

    async with one(log) as ref:
        with pytest.raises(trio.TooSlowError):
            await ref.ask(careful, within=1)
        await ref.ask("next", within=9)
    assert log == ["setup", "whole", "next", "teardown"]


async def test_an_ask_of_itself_or_in_a_circle_fails_at_once(autojump_clock: Clock) -> None:
    async with open_supervisor() as root:
        a = root.start(Scripted, name="a")
        b = root.start(Scripted, name="b")
        with pytest.raises(ActorCrashed) as caught:
            await a.ask(lambda actor: actor.ref.ask(1, within=5), within=9)
        assert isinstance(caught.value.__cause__, AskCycle)
        with pytest.raises(ActorCrashed) as caught:
            await a.ask(lambda _: b.ask(lambda _: a.ask(1, within=5), within=7), within=9)
        innermost = caught.value.__cause__
        assert isinstance(innermost, ActorCrashed)
        assert isinstance(innermost.__cause__, AskCycle)
        assert innermost.__cause__.names == ["b", "a", "b"]
        assert trio.current_time() < 1


async def test_a_task_beside_receive_may_ask_its_own_actor(autojump_clock: Clock) -> None:
    async with one() as ref:
        answers: list[Any] = []

        async def beside() -> None:
            answers.append(await ref.ask("hello", within=1))

        async def begin(actor: Scripted) -> None:
            actor.start_soon(beside)

        ref.tell(begin)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == ["hello"]


# --- deferred answers ------------------------------------------------------------------------------------------------


async def test_a_deferred_answer_does_not_hold_up_the_mailbox(autojump_clock: Clock) -> None:
    replies: list[Reply] = []

    async def later(actor: Scripted) -> str:
        reply = actor.defer()
        assert reply is not None
        replies.append(reply)
        return "dropped"

    async with one() as ref:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await ref.ask(later, within=9))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert await ref.ask("between", within=1) == "between"
            replies[1].answer("second")
            replies[1].answer("dropped")
            await trio.testing.wait_all_tasks_blocked()
            replies[0].answer("first")
        assert answers == ["second", "first"]
        assert await ref.ask(told_or_asked, within=1) is True


async def told_or_asked(actor: Scripted) -> bool:
    reply = actor.defer()
    if reply is not None:
        reply.answer(True)
    actor.log.append(reply is not None)
    return False


async def test_a_tell_has_no_reply_to_defer(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log) as ref:
        ref.tell(told_or_asked)
        await trio.testing.wait_all_tasks_blocked()
    assert log[1] is False


async def test_a_deferred_ask_that_is_withdrawn_tells_the_actor(autojump_clock: Clock) -> None:
    log: list[Any] = []

    async def later(actor: Scripted) -> None:
        reply = actor.defer()
        assert reply is not None
        reply.on_withdrawn(lambda: actor.log.append("withdrawn"))
        await trio.sleep(5)
        actor.log.append(("not interrupted", reply.settled))

    async with one(log) as ref:
        with pytest.raises(trio.TooSlowError):
            await ref.ask(later, within=2)
        await ref.ask("next", within=9)
    assert log == ["setup", "withdrawn", ("not interrupted", True), "next", "teardown"]


@pytest.mark.parametrize("way", ["crash", "stop", "leave"])
async def test_every_ask_ends_when_the_actor_ends(way: str, autojump_clock: Clock) -> None:
    """A held, a deferred and a waiting ask end with the actor, before their own deadlines."""
    ends: dict[str, Any] = {}

    async def ask(ref: ActorRef[Any], name: str, message: Any) -> None:
        try:
            ends[name] = await ref.ask(message, within=1000)
        except Exception as error:
            ends[name] = type(error)

    async def later(actor: Scripted) -> None:
        actor.defer()

    async def held(actor: Scripted) -> None:
        with trio.move_on_after(50):
            await trio.sleep_forever()
        if way == "crash":
            raise ValueError

    async with trio.open_nursery() as nursery, open_supervisor() as root:
        ref = root.start(Scripted, name="one")
        for name, message in (("deferred", later), ("held", held), ("queued", "queued")):
            nursery.start_soon(ask, ref, name, message)
            await trio.testing.wait_all_tasks_blocked()
        assert not ends
        if way == "stop":
            ref.stop()
        if way != "leave":
            await trio.sleep(200)
            assert len(ends) == 3
    assert trio.current_time() < 300
    expected: dict[str, dict[str, Any]] = {
        "crash": {"deferred": ActorCrashed, "held": ActorCrashed, "queued": "queued"},
        "stop": {"deferred": ActorStopped, "held": None, "queued": ActorStopped},
        "leave": {"deferred": ActorStopped, "held": ActorStopped, "queued": ActorStopped},
    }
    assert ends == expected[way]


# --- signals, stop, watch --------------------------------------------------------------------------------------------


async def test_signals_are_merged_handled_first_and_survive_a_crash(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with one(log, capacity=2) as ref:
        release = trio.Event()

        async def hold(actor: Scripted) -> None:
            await release.wait()
            raise ValueError

        ref.tell(hold)
        await trio.testing.wait_all_tasks_blocked()
        ref.tell("m1")
        ref.tell("m2")
        for number in range(1000):
            ref.signal("ack", number)
            ref.signal(("abort", number % 2))
        release.set()
        await ref.ask("last", within=9) if ref.depth < 2 else await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
    assert log == [
        "setup",
        "teardown",
        "setup",
        ("ack", 999),
        (("abort", 0), None),
        (("abort", 1), None),
        "m1",
        "m2",
        "teardown",
    ]


async def test_stop_passes_a_full_mailbox_and_ends_after_the_current_message(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with open_supervisor() as root:
        ref = root.start(lambda: Scripted(log), name="one", capacity=1)

        async def slow(actor: Scripted) -> None:
            await trio.sleep(5)
            actor.log.append("whole")

        ref.tell(slow)
        await trio.testing.wait_all_tasks_blocked()
        ref.tell("never begun")
        ref.stop()
        await ref.wait_stopped()
        assert log == ["setup", "whole", "teardown"]
        assert ref.state == "stopped"
        with pytest.raises(ActorStopped):
            ref.tell(1)
        with pytest.raises(ActorStopped):
            await ref.ask(1, within=1)
        with pytest.raises(ActorStopped):
            await ref.wait_ready()
        ref.signal("ignored")
        ref.stop()
        assert not root.tree().children


async def test_an_actor_can_stop_itself(autojump_clock: Clock) -> None:
    async def last(actor: Scripted) -> str:
        actor.ref.stop()
        return "bye"

    async with one() as ref:
        assert await ref.ask(last, within=1) == "bye"
        await ref.wait_stopped()


async def test_watchers_are_told_of_the_end_of_each_incarnation(autojump_clock: Clock) -> None:
    log: list[Any] = []
    async with open_supervisor() as root:
        ref = root.start(Scripted, name="one")
        watcher = root.start(lambda: Scripted(log), name="watcher")
        ref.watch(watcher)
        ref.tell(crash)
        await trio.sleep(1)
        ref.stop()
        await ref.wait_stopped()
        await trio.testing.wait_all_tasks_blocked()
        ref.watch(watcher)
        await trio.testing.wait_all_tasks_blocked()
    (_, (key, first), (_, second), (_, third), _) = log
    assert key == ("down", "one")
    assert isinstance(first, Down)
    assert isinstance(first.error, ValueError)
    assert (first.final, second.final, third.final) == (False, True, True)
    assert second.ref is ref


async def test_unwatch_ends_the_signals_to_that_watcher_only(autojump_clock: Clock) -> None:
    log: list[Any] = []
    others: list[Any] = []
    async with open_supervisor() as root:
        ref = root.start(Scripted, name="one")
        watcher = root.start(lambda: Scripted(log), name="watcher")
        other = root.start(lambda: Scripted(others), name="other")
        ref.unwatch(watcher)  # a watcher that never was is no error
        ref.watch(watcher)
        ref.watch(other)
        ref.tell(crash)
        await trio.sleep(1)
        ref.unwatch(watcher)
        ref.stop()
        await ref.wait_stopped()
        await trio.testing.wait_all_tasks_blocked()
    downs = [[entry[1] for entry in entries if entry[0] == ("down", "one")] for entries in (log, others)]
    assert [[down.final for down in found] for found in downs] == [[False], [False, True]]


# --- a life ----------------------------------------------------------------------------------------------------------


async def test_an_exception_beside_receive_is_a_crash_and_ends_the_handler(autojump_clock: Clock) -> None:
    log: list[Any] = []

    async def fail_later() -> None:
        await trio.sleep(1)
        raise OSError("link lost")

    async def hold(actor: Scripted) -> None:
        actor.start_soon(fail_later)
        await sleep_forever(actor)

    async with one(log) as ref:
        with pytest.raises(ActorCrashed, match="OSError: link lost"):
            await ref.ask(hold, within=9)
        await ref.ask("next", within=9)
    assert log == ["setup", "begun", "interrupted", "teardown", "setup", "next", "teardown"]


async def test_the_first_failure_is_the_cause_and_a_second_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise OSError("first")

    async def hold(actor: Scripted) -> None:
        actor.start_soon(fail)
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("second")

    async with one() as ref:
        with pytest.raises(ActorCrashed) as caught:
            await ref.ask(hold, within=9)
        assert isinstance(caught.value.__cause__, KeyError)  # that is what became of this message
        await ref.wait_ready()
        assert isinstance(ref._cell.last_error, OSError)
    assert "actor 'one' failed on its way out" in caplog.text


async def fail_when_cancelled() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("on the way out")


async def with_a_nursery() -> None:
    """Raise a group of the cancellation and a failure when cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_when_cancelled)
        await trio.sleep_forever()


class Grouping(Scripted):
    """An actor that runs, in the method ``where``, a nursery of its own that fails when cancelled."""

    def __init__(self, log: list[Any], where: str) -> None:
        super().__init__(log)
        self.where = where

    async def setup(self) -> None:
        await super().setup()
        if self.where == "beside":
            self.start_soon(with_a_nursery)

    async def receive(self, message: Any) -> Any:
        if message == "hold" and self.where == "receive":
            await with_a_nursery()
        return await super().receive(message)

    async def teardown(self) -> None:
        await super().teardown()
        if self.where == "teardown":
            await with_a_nursery()


@pytest.mark.parametrize("way", ["beside fails", "restarted with another", "stopped with another", "cancelled"])
@pytest.mark.parametrize("where", ["receive", "beside", "teardown"])
async def test_a_failure_in_a_group_with_its_cancellation_stays_inside(
    where: str, way: str, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []

    async def fail() -> None:
        raise OSError("first")

    async def fail_beside(actor: Scripted) -> None:
        actor.start_soon(fail)

    with trio.CancelScope() as scope:
        async with open_supervisor(strategy="one_for_all", restarts=Restarts(first_s=1)) as root:
            ref: ActorRef[Any] = root.start(lambda: Grouping(log, where), name="grouping")
            other: ActorRef[Any] = root.start(Scripted, name="other")
            if way == "beside fails":
                ref.tell(fail_beside)
            ref.tell("hold")
            await trio.testing.wait_all_tasks_blocked()
            if way == "restarted with another":
                other.tell(crash)
            if way == "cancelled":
                scope.cancel()
            if way != "stopped with another":
                await trio.sleep(2 * TEARDOWN_S)
                assert await other.ask("again", within=1) == "again"
                assert await ref.ask("again", within=1) == "again"
    assert log.count("setup") == log.count("teardown") == (1 if way in ("cancelled", "stopped with another") else 2)
    assert "on the way out" in caplog.text


async def test_tasks_beside_receive_have_ended_when_teardown_runs(autojump_clock: Clock) -> None:
    log: list[Any] = []

    async def beside() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            log.append("ended")

    async def begin(actor: Scripted) -> None:
        actor.start_soon(beside)

    async with one(log) as ref:
        ref.tell(begin)
        await trio.testing.wait_all_tasks_blocked()
    assert log == ["setup", "ended", "teardown"]


async def test_teardown_is_bounded_and_shielded(autojump_clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Actor[Any]):
        done = False

        async def receive(self, message: Any) -> None:
            """Never called: no message is sent."""

        async def teardown(self) -> None:
            await trio.sleep(1)
            Slow.done = True
            await trio.sleep_forever()

    with trio.move_on_after(2):
        async with open_supervisor() as root:
            root.start(Slow, name="slow")
            await trio.sleep_forever()
    assert Slow.done
    assert trio.current_time() == pytest.approx(2 + TEARDOWN_S, abs=0.1)
    assert "was cut short" in caplog.text


async def test_a_failing_teardown_is_logged_and_changes_nothing(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(Scripted):
        async def teardown(self) -> None:
            raise KeyError("lost")

    async with open_supervisor() as root:
        ref = root.start(Bad, name="bad")
        with pytest.raises(ActorCrashed, match="boom"):
            await ref.ask(crash, within=1)
        assert await ref.ask("again", within=1) == "again"
    assert "teardown of actor 'bad' failed" in caplog.text


async def test_a_failing_setup_has_no_teardown(autojump_clock: Clock) -> None:
    log: list[Any] = []

    class Slow(Scripted):
        async def setup(self) -> None:
            log.append("setup")
            if log.count("setup") < 3:
                raise OSError("not yet")

    async with open_supervisor(restarts=Restarts(first_s=1)) as root:
        ref = root.start(lambda: Slow(log), name="slow")
        assert await ref.ask("waits for it", within=9) == "waits for it"
        assert trio.current_time() == pytest.approx(3, abs=0.1)
    assert log == ["setup"] * 3 + ["waits for it", "teardown"]
