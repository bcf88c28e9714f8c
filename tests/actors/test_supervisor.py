"""Supervisors, in virtual time: the restarted children, the backoff, and the error of a supervisor that gives up."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    ActorStopped,
    Escalation,
    Renewed,
    Restarts,
    open_supervisor,
)
from omni_actors.actors.supervisor import STOP_S

Clock = trio.testing.MockClock


class Echo(Actor[Any]):
    async def receive(self, message: Any) -> Any:
        return message


class Worker(Actor[Any]):
    """An actor that ``boom`` crashes, and that returns any other message. ``log`` gets (time, name, event)."""

    def __init__(self, log: list[tuple[float, str, str]], name: str) -> None:
        self.log = log
        self.name = name

    def note(self, what: str) -> None:
        self.log.append((round(trio.current_time(), 3), self.name, what))

    async def setup(self) -> None:
        self.note("setup")

    async def receive(self, message: Any) -> Any:
        if message == "boom":
            raise ValueError("boom")
        if message == "renew":
            raise Renewed("it was wished for")
        return message

    async def teardown(self) -> None:
        self.note("teardown")


async def boom(ref: ActorRef[Any]) -> None:
    with pytest.raises(ActorCrashed):
        await ref.ask("boom", within=1000)


async def test_one_for_one_restarts_the_failed_child_only(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor(restarts=Restarts(first_s=1)) as root:
        a, b = (root.start(lambda name=name: Worker(log, name), name=name) for name in "ab")  # type: ignore[misc]
        await b.wait_ready()
        log.clear()
        await boom(a)
        assert await b.ask("there", within=0.1) == "there"
        assert await a.ask("back", within=5) == "back"
        assert log == [(0, "a", "teardown"), (1, "a", "setup")]


async def test_one_for_all_restarts_all_together_and_keeps_their_mailboxes(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor(strategy="one_for_all", restarts=Restarts(first_s=1)) as root:
        a, b = (root.start(lambda name=name: Worker(log, name), name=name) for name in "ab")  # type: ignore[misc]
        await b.wait_ready()
        log.clear()
        await boom(a)
        b.tell("kept")
        await trio.sleep(2)
        assert await b.ask("back", within=5) == "back"
        assert sorted(log) == [(0, "a", "teardown"), (0, "b", "teardown"), (1, "a", "setup"), (1, "b", "setup")]
        assert [child.restarts for child in root.tree().children] == [1, 1]
        late = root.start(lambda: Worker(log, "late"), name="late")
        assert await late.ask("in", within=1) == "in"


async def test_with_one_for_all_the_children_share_one_row_of_failures(autojump_clock: Clock) -> None:
    with pytest.raises(Escalation, match="'b' failed 3 times in a row"):
        async with open_supervisor(strategy="one_for_all", restarts=Restarts(limit=2)) as root:
            a, b = (root.start(lambda name=name: Worker([], name), name=name) for name in "ab")  # type: ignore[misc]
            for ref in (a, b, b):
                await boom(ref)
                await trio.sleep(1)


async def test_a_failure_while_being_cancelled_for_another_child_counts_once(autojump_clock: Clock) -> None:
    class Brittle(Worker):
        async def receive(self, message: Any) -> Any:
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("on the way out")

    async with open_supervisor(strategy="one_for_all", restarts=Restarts(limit=1)) as root:
        brittle = root.start(lambda: Brittle([], "brittle"), name="brittle")
        sick = root.start(lambda: Worker([], "sick"), name="sick")
        brittle.tell("hold")
        await trio.testing.wait_all_tasks_blocked()
        await boom(sick)
        await trio.sleep(5)
        assert await sick.ask("back", within=5) == "back"


async def test_backoff_doubles_up_to_its_cap(autojump_clock: Clock) -> None:
    starts: list[float] = []

    class Never(Echo):
        async def setup(self) -> None:
            starts.append(round(trio.current_time(), 3))
            raise OSError

    with pytest.raises(Escalation):
        async with open_supervisor(restarts=Restarts(limit=6, first_s=0.5, cap_s=4)) as root:
            root.start(Never, name="never")
            await trio.sleep_forever()
    assert starts == [0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5]


async def test_a_setup_that_fails_slowly_counts(autojump_clock: Clock) -> None:
    class Slow(Echo):
        async def setup(self) -> None:
            await trio.sleep(600)
            raise RuntimeError("weights do not load")

    with pytest.raises(Escalation, match="'slow' failed 4 times in a row; last: RuntimeError") as caught:
        async with open_supervisor(restarts=Restarts(limit=3, healthy_s=5)) as root:
            root.start(Slow, name="slow")
            await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(2400, abs=5)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.failures == 4


async def test_a_long_healthy_incarnation_starts_a_new_count(autojump_clock: Clock) -> None:
    async with open_supervisor(restarts=Restarts(limit=2, healthy_s=60)) as root:
        ref = root.start(lambda: Worker([], "w"), name="w")
        for _ in range(20):
            await boom(ref)
            await boom(ref)
            await ref.wait_ready()
            await trio.sleep(61)
        (child,) = root.tree().children
        assert (child.restarts, child.failures) == (40, 2)


async def test_a_renewal_restarts_at_once_and_counts_as_no_failure(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor(restarts=Restarts(limit=0, first_s=1)) as root:
        it = root.start(lambda: Worker(log, "it"), name="it")
        await it.wait_ready()
        log.clear()
        for _ in range(3):
            it.tell("renew")
        assert await it.ask("back", within=0.1) == "back"
        assert log == [(0, "it", "teardown"), (0, "it", "setup")] * 3
        assert it.failures == 0
        assert root.tree().children[0].restarts == 3


async def test_the_time_of_the_next_incarnation_is_known_during_the_backoff(autojump_clock: Clock) -> None:
    async with open_supervisor(restarts=Restarts(first_s=2)) as root:
        it = root.start(lambda: Worker([], "it"), name="it")
        await it.wait_ready()
        assert it.restart_at is None
        await boom(it)
        await trio.sleep(0.5)
        assert it.restart_at == pytest.approx(trio.current_time() + 1.5)
        assert it.failures == 1
        await it.wait_ready()
        assert it.restart_at is None


async def test_a_supervisor_without_a_limit_never_gives_up(autojump_clock: Clock) -> None:
    async with open_supervisor(restarts=Restarts(limit=None, cap_s=1)) as root:
        ref = root.start(lambda: Worker([], "w"), name="w")
        for _ in range(200):
            await boom(ref)
        assert await ref.ask("alive", within=5) == "alive"


async def test_escalation_ends_the_siblings_and_comes_out_of_the_block(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    asked: list[type[BaseException]] = []

    async def ask(ref: ActorRef[Any]) -> None:
        with pytest.raises(ActorStopped) as caught:
            await ref.ask("hold", within=1000)
        asked.append(caught.type)

    class Holder(Worker):
        async def receive(self, message: Any) -> Any:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        with pytest.raises(Escalation):
            async with open_supervisor(restarts=Restarts(limit=0)) as root:
                healthy = root.start(lambda: Holder(log, "healthy"), name="healthy")
                sick = root.start(lambda: Worker(log, "sick"), name="sick")
                nursery.start_soon(ask, healthy)
                await trio.testing.wait_all_tasks_blocked()
                sick.tell("boom")
                await trio.sleep_forever()
        assert (0, "healthy", "teardown") in log
    assert asked == [ActorStopped]
    assert healthy.state == sick.state == "stopped"


async def test_a_supervisor_that_gives_up_is_restarted_by_the_one_above(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor(restarts=Restarts(limit=1, first_s=10)) as root:
        below = root.supervisor("below", restarts=Restarts(limit=1, first_s=1))
        ref = below.start(lambda: Worker(log, "w"), name="w")
        sibling = below.start(lambda: Worker(log, "s"), name="s")
        other = root.start(lambda: Worker(log, "o"), name="o")
        await other.wait_ready()
        await boom(ref)
        await boom(ref)  # below gives up
        assert await other.ask(1, within=0.1) == 1
        assert await ref.ask("again", within=20) == "again"
        assert await sibling.ask("again", within=20) == "again"
        assert [(round(t), what) for t, name, what in log if name == "s"] == [
            (0, "setup"),
            (1, "teardown"),
            (11, "setup"),
        ]
        tree = root.tree()
        assert (tree.children[0].name, tree.children[0].kind, tree.children[0].restarts) == ("below", "supervisor", 1)


async def test_a_restarted_supervisor_counts_its_childrens_failures_anew(autojump_clock: Clock) -> None:
    async with open_supervisor(restarts=Restarts(limit=1)) as root:
        below = root.supervisor("below", restarts=Restarts(limit=2))
        ref = below.start(lambda: Worker([], "w"), name="w")
        for restarts in (0, 0, 1, 1, 1):  # the third failure is one too many, the first two after it are not
            await boom(ref)
            await trio.sleep(1)
            assert below.restarts == restarts
        assert await ref.ask("there", within=1) == "there"


async def test_nested_escalation_comes_out_once_at_the_top(autojump_clock: Clock) -> None:
    with pytest.raises(Escalation, match="'below' failed once") as caught:
        async with open_supervisor(restarts=Restarts(limit=0)) as root:
            below = root.supervisor("below", restarts=Restarts(limit=0))
            below.start(lambda: Worker([], "w"), name="w").tell("boom")
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, Escalation)
    assert isinstance(caught.value.__cause__.__cause__, ValueError)


async def test_a_block_that_waits_for_an_actor_gets_the_escalation_alone(autojump_clock: Clock) -> None:
    class Holder(Worker):
        async def receive(self, message: Any) -> Any:
            await trio.sleep_forever()

    with pytest.raises(Escalation):
        async with open_supervisor(restarts=Restarts(limit=0)) as root:
            holder = root.start(lambda: Holder([], "holder"), name="holder")
            root.start(lambda: Worker([], "sick"), name="sick").tell("boom")
            await holder.ask("hold", within=1000)


async def test_an_escalation_beside_another_failure_of_the_block_hides_neither(autojump_clock: Clock) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with open_supervisor(restarts=Restarts(limit=0)) as root:
            root.start(lambda: Worker([], "sick"), name="sick").tell("boom")
            try:
                await trio.sleep_forever()
            finally:
                _ = 1 / 0
    assert [type(error) for error in caught.value.exceptions] == [Escalation, ZeroDivisionError]


async def test_leaving_the_block_stops_in_reverse_order(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor() as root:
        for name in "abc":
            ref = root.start(lambda name=name: Worker(log, name), name=name)  # type: ignore[misc]
            await ref.wait_ready()
        log.clear()
    assert [(name, what) for _, name, what in log] == [("c", "teardown"), ("b", "teardown"), ("a", "teardown")]


async def test_children_that_do_not_stop_are_cancelled(autojump_clock: Clock) -> None:
    class Stuck(Worker):
        async def receive(self, message: Any) -> Any:
            await trio.sleep_forever()

    log: list[tuple[float, str, str]] = []
    async with open_supervisor() as root:
        root.start(lambda: Worker(log, "well"), name="well")
        root.start(lambda: Stuck(log, "stuck"), name="stuck").tell("hold")
        await trio.testing.wait_all_tasks_blocked()
        log.clear()
    assert sorted(log) == [(STOP_S, "stuck", "teardown"), (STOP_S, "well", "teardown")]


async def test_stop_during_backoff_ends_at_once(autojump_clock: Clock) -> None:
    async with open_supervisor(restarts=Restarts(first_s=100, cap_s=100)) as root:
        ref = root.start(lambda: Worker([], "w"), name="w")
        await boom(ref)
        await trio.testing.wait_all_tasks_blocked()
        assert ref.state == "waiting"
        ref.stop()
        await ref.wait_stopped()
        assert trio.current_time() < 1
        again = root.start(lambda: Worker([], "w"), name="w")  # the name is free again
        await boom(again)
    assert trio.current_time() < 1


async def test_no_child_is_restarted_when_a_request_to_stop_ends_a_backoff(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    async with open_supervisor(strategy="one_for_all", restarts=Restarts(first_s=100, cap_s=100)) as root:
        refs = [root.start(lambda name=name: Worker(log, name), name=name) for name in "ab"]  # type: ignore[misc]
        await refs[1].wait_ready()
        await boom(refs[0])
        await trio.testing.wait_all_tasks_blocked()
        log.clear()
    assert log == []
    assert trio.current_time() < 1
    assert [ref.state for ref in refs] == ["stopped", "stopped"]


async def test_an_exception_of_the_block_comes_out_unchanged(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    with pytest.raises(ZeroDivisionError):
        async with open_supervisor() as root:
            ref = root.start(lambda: Worker(log, "w"), name="w")
            await ref.wait_ready()
            _ = 1 / 0
    assert [what for _, _, what in log] == ["setup", "teardown"]
    with pytest.raises(RuntimeError, match="stopping"):
        root.start(lambda: Worker(log, "late"), name="late")


async def test_cancellation_of_the_block_tears_everything_down(autojump_clock: Clock) -> None:
    log: list[tuple[float, str, str]] = []
    with trio.move_on_after(1) as scope:
        async with open_supervisor() as root:
            below = root.supervisor("below", strategy="one_for_all")
            below.start(lambda: Worker(log, "w"), name="w")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert log == [(0, "w", "setup"), (1, "w", "teardown")]


async def test_names_are_unique_below_one_supervisor(autojump_clock: Clock) -> None:
    async with open_supervisor() as root:
        root.start(lambda: Worker([], "w"), name="w")
        with pytest.raises(ValueError, match="'w' already"):
            root.start(lambda: Worker([], "w"), name="w")


async def test_the_tree_shows_states_depths_and_restarts(autojump_clock: Clock) -> None:
    class Holder(Worker):
        async def receive(self, message: Any) -> Any:
            if message == "hold":
                await trio.sleep(5)
            return await super().receive(message)

    async with open_supervisor("omni", restarts=Restarts(first_s=1)) as root:
        below = root.supervisor("pool", strategy="one_for_all")
        busy = below.start(lambda: Holder([], "busy"), name="busy", capacity=8)
        sick = root.start(lambda: Worker([], "sick"), name="sick")
        await boom(sick)
        busy.tell("hold")
        await trio.testing.wait_all_tasks_blocked()
        busy.tell(1)
        busy.tell(2)
        assert str(root.tree()).splitlines() == [
            "omni [running]",
            "  pool [running]",
            "    busy [running] 2/8",
            "  sick [waiting] 0/256 restarts 0, last after ValueError: boom",
        ]
