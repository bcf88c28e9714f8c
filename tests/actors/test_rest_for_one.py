"""The strategy ``rest_for_one``, in virtual time: the restarted children, their order, and the count of failures."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing

from omni_actors.actors import Actor, ActorRef, Escalation, Renewed, Restarts, Supervisor, open_supervisor

Clock = trio.testing.MockClock
Log = list[tuple[float, str, str]]


class Link(Actor[Any]):
    """An actor of a chain, crashed by ``boom``. Setup and teardown take a second each, and are logged."""

    def __init__(self, log: Log, name: str, failing: dict[str, int]) -> None:
        self.log = log
        self.name = name
        self.failing = failing

    def note(self, what: str) -> None:
        self.log.append((round(trio.current_time(), 3), self.name, what))

    async def setup(self) -> None:
        self.note("begin")
        await trio.sleep(1)
        if self.failing.get(self.name, 0):
            self.failing[self.name] -= 1
            raise OSError("no setup")
        self.note("ready")

    async def receive(self, message: Any) -> Any:
        if message == "boom":
            raise ValueError("boom")
        if message == "renew":
            raise Renewed("it was wished for")
        if message == "brittle":
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("on the way out")
        return message

    async def teardown(self) -> None:
        await trio.sleep(1)
        self.note("end")


async def chain(
    root: Supervisor, log: Log, names: str = "abcd", failing: dict[str, int] | None = None
) -> dict[str, ActorRef[Any]]:
    failing = {} if failing is None else failing
    refs: dict[str, ActorRef[Any]] = {}
    for name in names:
        refs[name] = root.start(lambda name=name: Link(log, name, failing), name=name)  # type: ignore[misc]
        await refs[name].wait_ready()
    log.clear()
    return refs


async def settled(root: Supervisor) -> None:
    """Wait until every child runs."""
    await trio.testing.wait_all_tasks_blocked()
    while {child.state for child in root.tree().children} != {"running"}:
        await trio.sleep(1)


def words(log: Log) -> list[str]:
    return [f"{name} {what}" for _, name, what in log]


async def test_younger_children_end_in_reverse_and_restart_in_order(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10)) as root:
        refs = await chain(root, log)
        begun = trio.current_time()
        refs["b"].tell("boom")
        refs["d"].tell("kept")
        await trio.testing.wait_all_tasks_blocked()
        assert await refs["a"].ask("there all along", within=0.1) == "there all along"
        await trio.sleep(5)
        assert [child.state for child in root.tree().children] == ["running", "waiting", "waiting", "waiting"]
        assert await refs["d"].ask("back", within=60) == "back"
        assert [(t - begun, name, what) for t, name, what in log] == [
            (1, "b", "end"),
            (2, "d", "end"),
            (3, "c", "end"),
            (13, "b", "begin"),
            (14, "b", "ready"),
            (14, "c", "begin"),
            (15, "c", "ready"),
            (15, "d", "begin"),
            (16, "d", "ready"),
        ]
        assert [child.restarts for child in root.tree().children] == [0, 1, 1, 1]


async def test_the_youngest_child_restarts_alone_and_the_oldest_with_all(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one") as root:
        refs = await chain(root, log, "abc")
        refs["c"].tell("boom")
        await trio.sleep(5)
        assert words(log) == ["c end", "c begin", "c ready"]
        log.clear()
        refs["a"].tell("boom")
        await trio.sleep(10)
        begins = [f"{name} {what}" for name in "abc" for what in ("begin", "ready")]
        assert words(log) == ["a end", "c end", "b end", *begins]


async def test_a_setup_that_fails_in_a_restart_begins_the_restart_from_that_child(autojump_clock: Clock) -> None:
    log: Log = []
    failing: dict[str, int] = {}
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=3)) as root:
        refs = await chain(root, log, "abc", failing)
        failing["b"] = 2
        refs["a"].tell("boom")
        await settled(root)
        ends, begins = words(log)[:3], words(log)[3:]
        assert ends == ["a end", "c end", "b end"]
        assert begins == ["a begin", "a ready", "b begin", "b begin", "b begin", "b ready", "c begin", "c ready"]
        assert [child.failures for child in root.tree().children] == [1, 3, 0]


async def test_all_children_share_one_row_of_failures(autojump_clock: Clock) -> None:
    with pytest.raises(Escalation, match="'c' failed 3 times in a row"):
        async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=2)) as root:
            refs = await chain(root, [], "abc")
            for name in "abc":
                refs[name].tell("boom")
                await trio.sleep(20)
    assert {ref.state for ref in refs.values()} == {"stopped"}


async def test_a_long_healthy_incarnation_starts_a_new_row_of_failures(autojump_clock: Clock) -> None:
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=1, healthy_s=60)) as root:
        refs = await chain(root, [], "ab")
        for _ in range(5):
            refs["a"].tell("boom")
            await trio.sleep(100)
        assert await refs["b"].ask("there", within=1) == "there"


async def test_the_backoff_grows_with_the_shared_row(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(
        strategy="rest_for_one", restarts=Restarts(first_s=10, cap_s=100, healthy_s=1000)
    ) as root:
        refs = await chain(root, log, "ab")
        waits = []
        for name in "bab":
            log.clear()
            refs[name].tell("boom")
            await settled(root)
            ended = max(t for t, _, what in log if what == "end")
            waits.append(min(t for t, _, what in log if what == "begin") - ended)
        assert waits == [10, 20, 40]


async def test_the_failure_of_an_older_child_takes_over_a_restart(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10)) as root:
        refs = await chain(root, log, "abc")
        refs["b"].tell("boom")
        await trio.sleep(5)  # b and c have ended, and wait
        refs["a"].tell("boom")
        assert await refs["c"].ask("back", within=100) == "back"
        begins = [f"{name} {what}" for name in "abc" for what in ("begin", "ready")]
        assert words(log) == ["b end", "c end", "a end", *begins]


async def test_the_failure_of_an_older_child_while_younger_children_begin_again(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10)) as root:
        refs = await chain(root, log, "abc")
        refs["b"].tell("boom")
        await trio.sleep(11.5)  # after 1 + 1 for teardowns and 10 of backoff b is in its setup, when a has torn down
        log.clear()
        refs["a"].tell("boom")
        await settled(root)
        begins = [f"{name} {what}" for name in "abc" for what in ("begin", "ready")]
        assert words(log) == ["b begin", "a end", *begins]  # b's setup was cut off, c had not begun


async def test_two_failures_at_once_are_one_restart(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10, limit=2)) as root:
        refs = await chain(root, log, "abc")
        refs["c"].tell("boom")
        refs["a"].tell("boom")
        await settled(root)
        assert words(log)[-6:] == [f"{name} {what}" for name in "abc" for what in ("begin", "ready")]
        assert [child.restarts for child in root.tree().children] == [1, 1, 1]


async def test_a_failure_while_being_cancelled_for_another_child_is_not_counted(autojump_clock: Clock) -> None:
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=1)) as root:
        refs = await chain(root, [], "ab")
        refs["b"].tell("brittle")
        await trio.testing.wait_all_tasks_blocked()
        refs["a"].tell("boom")
        assert await refs["b"].ask("back", within=20) == "back"


async def test_a_renewal_restarts_no_other_child(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=0)) as root:
        refs = await chain(root, log, "ab")
        refs["a"].tell("renew")
        await trio.sleep(5)
        assert words(log) == ["a end", "a begin", "a ready"]


async def test_a_child_stopped_in_a_restart_leaves_and_the_others_go_on(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10)) as root:
        refs = await chain(root, log, "abc")
        refs["a"].tell("boom")
        await trio.sleep(5)
        refs["b"].stop()
        await refs["b"].wait_stopped()
        assert await refs["c"].ask("back", within=100) == "back"
        assert [child.name for child in root.tree().children] == ["a", "c"]


async def test_a_child_started_in_a_restart_begins_last(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=10)) as root:
        refs = await chain(root, log, "ab")
        refs["a"].tell("boom")
        await trio.sleep(5)
        late: ActorRef[Any] = root.start(lambda: Link(log, "late", {}), name="late")
        assert await late.ask("in", within=100) == "in"
        assert words(log)[-6:] == [f"{name} {what}" for name in ("a", "b", "late") for what in ("begin", "ready")]
        assert [child.restarts for child in root.tree().children] == [1, 1, 0]


async def test_a_request_to_stop_ends_a_restart_and_begins_no_child(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(first_s=100, cap_s=100)) as root:
        refs = await chain(root, log, "abc")
        refs["a"].tell("boom")
        await trio.sleep(10)
        log.clear()
    assert log == []
    assert trio.current_time() < 20
    assert {ref.state for ref in refs.values()} == {"stopped"}


async def test_a_supervisor_among_the_children_restarts_with_its_children(autojump_clock: Clock) -> None:
    log: Log = []
    async with open_supervisor(strategy="rest_for_one") as root:
        refs = await chain(root, log, "a")
        below = root.supervisor("below", strategy="rest_for_one")
        inner = await chain(below, log, "xy")
        refs["a"].tell("boom")
        await settled(root)
        await settled(below)
        assert await inner["y"].ask("back", within=1) == "back"
        assert below.restarts == 1
        assert words(log).index("a ready") < words(log).index("x begin")


@pytest.mark.parametrize("seed", range(8))
async def test_after_any_failures_all_children_run_and_restarted_in_order(seed: int, autojump_clock: Clock) -> None:
    """After each restart every child began after the older children, and no incarnations of a child overlap."""
    draw = random.Random(seed)
    log: Log = []
    failing: dict[str, int] = {}
    async with open_supervisor(strategy="rest_for_one", restarts=Restarts(limit=None, cap_s=5)) as root:
        refs = await chain(root, log, "abcde", failing)
        for _ in range(30):
            name = draw.choice("abcde")
            if draw.random() < 0.3:
                failing[name] = 1
            refs[name].tell("boom")
            await trio.sleep(draw.choice((0, 0, 0.5, 1, 3, 8)))
        await settled(root)
        await settled(root)
        last = {name: max((t for t, who, what in log if (who, what) == (name, "ready")), default=0) for name in refs}
        assert sorted(last, key=lambda name: (last[name], name)) == list(refs), log
    lives = dict.fromkeys(refs, "ready")  # as the log began
    for _, name, what in log:
        assert what != "begin" or lives[name] in ("end", "begin"), (name, log)
        lives[name] = what
