"""Random incarnations of an actor, in virtual time: every ask ends once, no message is begun twice, nothing is left."""

from __future__ import annotations

from collections import Counter

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.actors import Actor, ActorCrashed, ActorStopped, MailboxFull, Refusal, Reply, Restarts, open_supervisor

BEHAVIOURS = st.sampled_from(
    ["answer", "sleep", "refuse", "crash", "defer", "defer and crash", "shield", "beside crash"]
)
ACTIONS = st.one_of(
    st.tuples(st.just("ask"), BEHAVIOURS, st.integers(0, 8)),
    st.tuples(st.just("tell"), BEHAVIOURS, st.just(0)),
    st.tuples(st.just("pause"), st.just(""), st.integers(0, 4)),
    st.tuples(st.just("signal"), st.just(""), st.integers(0, 2)),
)


class Anything(Actor[tuple[int, str]]):
    def __init__(self, begun: Counter[int], lives: list[int]) -> None:
        self.begun = begun
        self.lives = lives

    async def setup(self) -> None:
        await trio.sleep(0.5)
        self.lives.append(+1)

    async def teardown(self) -> None:
        await trio.sleep(0.5)
        self.lives.append(-1)

    async def receive(self, message: tuple[int, str]) -> int:
        number, behaviour = message
        self.begun[number] += 1
        match behaviour:
            case "sleep":
                await trio.sleep(2)
            case "shield":
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
            case "refuse":
                raise Refusal(number)
            case "crash":
                await trio.sleep(1)
                raise ValueError(number)
            case "beside crash":
                self.start_soon(self.crash_later)
            case "defer":
                if (reply := self.defer()) is not None:
                    self.start_soon(self.answer_later, reply, number)
            case "defer and crash":
                self.defer()
                raise ValueError(number)
        return number

    async def crash_later(self) -> None:
        await trio.sleep(1)
        raise OSError

    async def answer_later(self, reply: Reply, number: int) -> None:
        await trio.sleep(3)
        reply.answer(number)


@given(
    actions=st.lists(ACTIONS, max_size=25), capacity=st.integers(1, 6), way=st.sampled_from(["leave", "stop", "cancel"])
)
def test_every_ask_ends_once_and_nothing_is_left(actions: list[tuple[str, str, int]], capacity: int, way: str) -> None:
    begun: Counter[int] = Counter()
    ends: Counter[int] = Counter()
    lives: list[int] = []
    sent: set[int] = set()
    refusals: list[tuple[int, object]] = []

    async def main() -> None:
        async def ask(number: int, behaviour: str, within: float) -> None:
            try:
                assert await ref.ask((number, behaviour), within=within) == number
            except Refusal as refusal:
                refusals.append((number, refusal.value))
            except (ActorCrashed, ActorStopped, MailboxFull, trio.TooSlowError):
                pass
            finally:
                ends[number] += 1

        async with trio.open_nursery() as askers:
            with trio.CancelScope() as scope:
                async with open_supervisor(restarts=Restarts(limit=None, cap_s=1)) as root:
                    ref = root.start(lambda: Anything(begun, lives), name="any", capacity=capacity)
                    cell = ref._cell
                    for number, (action, behaviour, amount) in enumerate(actions):
                        match action:
                            case "ask":
                                sent.add(number)
                                askers.start_soon(ask, number, behaviour, amount)
                            case "tell":
                                try:
                                    ref.tell((number, behaviour))
                                except MailboxFull:
                                    assert ref.depth == capacity
                            case "pause":
                                await trio.sleep(amount / 2)
                            case "signal":
                                ref.signal(amount, number)
                        assert ref.depth <= capacity
                    if way == "stop":
                        ref.stop()
                        await ref.wait_stopped()
                    elif way == "cancel":
                        scope.cancel()
        assert cell.state == "stopped"
        assert cell.current is None
        assert not cell.deferred
        assert not cell.mailbox.queue

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert set(ends) == sent
    assert all(number == value for number, value in refusals)
    assert all(count == 1 for count in ends.values())
    assert all(count == 1 for count in begun.values())
    assert lives == [+1, -1] * (len(lives) // 2)
