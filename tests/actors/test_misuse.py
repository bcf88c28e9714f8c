"""Wrong factories, strategies and threads are refused at the call, with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    Escalation,
    ProcessActor,
    Restarts,
    open_launcher,
    open_supervisor,
)


class Echo(Actor[Any]):
    async def receive(self, message: Any) -> Any:
        return message


class Silent(Actor[Any]):
    async def setup(self) -> None:
        """An actor without ``receive``."""


async def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="no strategy 'one_for_two'; choose one of one_for_one, one_for_all, rest"):
        async with open_supervisor(strategy="one_for_two"):  # type: ignore[arg-type]
            raise AssertionError("not reached")
    async with open_supervisor() as root:
        with pytest.raises(ValueError, match="supervisor 'below': there is no strategy ''"):
            root.supervisor("below", strategy="")  # type: ignore[arg-type]
        assert root.tree().children == ()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Echo(), "not the actor <.*Echo.*>: pass the class, or lambda: Echo"),
        (None, "a new actor for each incarnation, not None"),
        ("package:Echo", "not 'package:Echo'"),
        (dict, "dict is not an Actor"),
        (Silent, r"Silent has no receive\(\)"),
        (Actor, r"Actor has no receive\(\)"),
    ],
)
async def test_start_takes_nothing_but_a_factory_of_actors(factory: Any, message: str) -> None:
    async with open_supervisor() as root:
        with pytest.raises(TypeError, match=message):
            root.start(factory, name="it")
        assert root.tree().children == ()
        ref: ActorRef[Any] = root.start(Echo, name="it")  # the name is free
        assert await ref.ask(1, within=1) == 1


def test_an_actor_without_receive_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"Silent.*receive"):
        Silent()  # type: ignore[abstract]


@pytest.mark.parametrize("kind", ["dict", "the same one"])
async def test_a_factory_that_makes_no_new_actor_crashes_with_the_reason(kind: str) -> None:
    once = Echo()
    factory: Any = dict if kind == "dict" else lambda: once
    with pytest.raises(Escalation) as caught:
        async with open_supervisor(restarts=Restarts(limit=0)) as root:
            if kind == "dict":
                root.start(lambda: factory(), name="it")
                await trio.sleep_forever()
            ref: ActorRef[Any] = root.start(factory, name="it")
            assert await ref.ask(1, within=1) == 1
            once.receive = None  # type: ignore[method-assign, assignment]
            ref.stop()
            await ref.wait_stopped()
            again: ActorRef[Any] = root.start(factory, name="it")
            await again.ask(1, within=1)
    wanted = "which is not an Actor" if kind == "dict" else "returned the Echo of an earlier incarnation"
    assert isinstance(caught.value.__cause__, TypeError)
    assert wanted in str(caught.value.__cause__)


async def test_a_call_from_another_thread_names_the_function_to_use() -> None:
    async with open_supervisor() as root:
        ref: ActorRef[Any] = root.start(Echo, name="echo")
        token = trio.lowlevel.current_trio_token()

        async def ask() -> Any:
            return await ref.ask("hello", within=1)

        def elsewhere() -> Any:
            for call, name in (
                (lambda: ref.tell("lost"), "tell"),
                (lambda: ref.signal("key"), "signal"),
                (ref.stop, "stop"),
                (lambda: asyncio.run(ask()), "ask"),
                (lambda: trio.run(ask), "ask"),
                (lambda: root.start(Echo, name="other"), "start"),
                (root.stop, "stop"),
            ):
                with pytest.raises(RuntimeError, match=rf"^{name}\(\) of .*another thread.*trio.from_thread.run"):
                    call()
            trio.from_thread.run_sync(ref.tell, "taken", trio_token=token)
            return trio.from_thread.run(ask, trio_token=token)

        assert await trio.to_thread.run_sync(elsewhere) == "hello"
        assert ref.state == "running"
        assert ref.depth == 0


async def test_a_class_that_is_not_an_actor_is_refused_in_its_process() -> None:
    async with open_launcher() as launcher:
        with pytest.raises(Escalation, match="collections:OrderedDict is not a class of actors"):
            async with open_supervisor(restarts=Restarts(limit=0)) as root:
                ref = root.start(lambda: ProcessActor(launcher, "collections:OrderedDict"), name="it")
                with pytest.raises(ActorCrashed):
                    await ref.ask(1, within=20)
                await trio.sleep_forever()
