"""What operators are told of a command that is refused, in every state of a replica; and that it changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import pytest
import trio
from tests.orchestrator.spine import collect, stub, stub_orchestrator, text_of, until
from tests.stages.test_control import held, status_of

from omni_actors.orchestrator import Orchestrator
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.stages.control import Control

COMMANDS: dict[str, Callable[[Control, str, int], Any]] = {
    "drain": Control.drain,
    "undrain": Control.undrain,
    "kill": Control.kill,
    "replace": Control.replace,
    "sleep": Control.sleep,
    "wake": Control.wake,
}
"""Those to one replica."""

SLEEPER = "stages.b.engine=tests.stages.sleepers:Sleeper"


async def give(orchestrator: Orchestrator, action: str, stage: str = "b", index: int = 0, **more: Any) -> Any:
    done = COMMANDS[action](orchestrator.control, stage, index, **more)
    return await done if isawaitable(done) else done


async def refusal(given: Awaitable[Any]) -> ErrorInfo:
    with pytest.raises(OmniError) as refused:
        await given
    said = refused.value.info.message
    assert "question" not in said
    assert said.endswith(".")
    assert said[0].isupper()
    return refused.value.info


async def test_what_there_is_not_is_404_for_every_command() -> None:
    async with stub_orchestrator("stages.b.replicas=2") as orchestrator:
        for action in COMMANDS:
            stage = await refusal(give(orchestrator, action, "talker"))
            assert (stage.status, stage.code, stage.param) == (404, "unknown_stage", "stage")
            assert stage.message == "There is no stage 'talker'. The stages are: a, b, c."
            for name, index, there in (("a", 1, "one replica, number 0"), ("b", 2, "2 replicas, numbered 0 to 1")):
                replica = await refusal(give(orchestrator, action, name, index))
                assert (replica.status, replica.code, replica.param) == (404, "unknown_replica", "index")
                assert there in replica.message
            assert (await refusal(give(orchestrator, action, "b", -1))).code == "unknown_replica"
        assert (await refusal(orchestrator.control.restart("talker"))).code == "unknown_stage"
        assert {it.state for it in orchestrator.control.status()} == {"ready"}


@pytest.mark.parametrize("action", ["sleep", "wake"])
async def test_an_engine_that_cannot_sleep_is_not_even_asked(action: str) -> None:
    """Its replica takes requests all the time: a drained one would have them refused."""
    async with stub_orchestrator() as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        takes: list[bool] = []
        b.drain = lambda drained: takes.append(not drained)  # type: ignore[method-assign]
        info = await refusal(give(orchestrator, action))
        assert (info.status, info.code, info.param) == (400, "unsupported_action", "action")
        assert info.message.startswith(f"Cannot {action} replica 0 of stage 'b': its engine (StubEngine) cannot sleep;")
        assert {"sleep": "'drain'", "wake": "'undrain'"}[action] in info.message
        assert takes == []


# Command by command: what each state of a replica answers. ``None`` is done.
DONE = None
READY = dict.fromkeys(COMMANDS, DONE) | {"wake": "replica_awake"}
DRAINED = READY
ASLEEP = dict.fromkeys(COMMANDS, DONE) | {"undrain": "replica_asleep"}
STARTING = dict.fromkeys(COMMANDS, DONE) | {"sleep": "replica_not_ready", "wake": "replica_not_ready"}
DEAD = STARTING | {"kill": "replica_not_running"}
REPLACED = dict.fromkeys(COMMANDS, "replica_busy") | {"kill": DONE}

WORDS = {
    "replica_awake": "it is not asleep",
    "replica_asleep": "Use 'wake' first",
    "replica_not_ready": "Try again when 'omni-actors replicas list' shows it as ready",
    "replica_not_running": "The next worker starts by itself",
    "replica_busy": "an earlier 'replace' is still being carried out",
}


async def check(orchestrator: Orchestrator, action: str, code: str | None) -> None:
    if code is None:
        assert await give(orchestrator, action)
        return
    before = status_of(orchestrator, "b").state
    info = await refusal(give(orchestrator, action))
    assert (info.status, info.code, info.param, info.type) == (409, code, "index", "conflict_error")
    assert info.message.startswith(f"Cannot {action} replica 0 of stage 'b'")
    assert WORDS[code] in info.message
    assert status_of(orchestrator, "b").state == before
    if code in ("replica_not_ready", "replica_not_running"):
        assert info.retry_after is not None
        assert info.retry_after >= 1


async def test_a_ready_a_drained_and_a_sleeping_replica() -> None:
    async with stub_orchestrator(SLEEPER) as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        for state, table in (("ready", READY), ("drained", DRAINED), ("asleep", ASLEEP)):
            for action, code in table.items():
                if code is None and action in ("kill", "replace"):
                    continue  # done below: they take a worker each
                if state != "ready":
                    await give(orchestrator, "drain" if state == "drained" else "sleep")
                assert status_of(orchestrator, "b").state == state
                await check(orchestrator, action, code)
                if status_of(orchestrator, "b").state == "asleep":
                    await give(orchestrator, "wake")
                await give(orchestrator, "undrain")
        awake = await refusal(give(orchestrator, "wake"))
        assert "undrain" not in awake.message
        await give(orchestrator, "drain")
        assert "'undrain' lets it" in (await refusal(give(orchestrator, "wake"))).message
        await give(orchestrator, "undrain")
        await give(orchestrator, "sleep")
        await give(orchestrator, "sleep")  # it does already
        assert (await refusal(give(orchestrator, "sleep", level=1))).code == "replica_asleep"
        assert (await give(orchestrator, "replace")).state == "ready"  # another worker is awake
        await give(orchestrator, "sleep")
        await give(orchestrator, "kill")
        await until(lambda: b.live and b.incarnation == 3)
        assert status_of(orchestrator, "b").state == "drained"  # so is one that follows a death, and takes nothing yet
        assert (await give(orchestrator, "wake")).state == "ready"
        assert text_of(await collect(orchestrator, stub(text="words"))) == "words"


async def test_a_replica_that_starts_and_one_that_is_dead() -> None:
    slow = ("stages.b.options.load_s=1.5", "limits.restart_delay_s=3", "limits.restart_delay_max_s=3")
    async with stub_orchestrator(SLEEPER, *slow) as orchestrator:
        b = orchestrator.pools["b"].replicas[0]
        await give(orchestrator, "kill")
        await until(lambda: not b.live and b.pid is None)
        for action, code in DEAD.items():
            if action != "replace":  # it waits for the next life
                await check(orchestrator, action, code)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give, orchestrator, "replace")
            await until(lambda: b.pid is not None and b.state.value == "starting")
            nursery.cancel_scope.cancel()
        for action, code in STARTING.items():
            if action not in ("replace", "kill"):
                await check(orchestrator, action, code)
        await until(lambda: b.live)
        await give(orchestrator, "undrain")


async def test_a_replica_that_another_command_is_at() -> None:
    async with stub_orchestrator(SLEEPER, "stages.b.replicas=2") as orchestrator, trio.open_nursery() as nursery:
        async with held(orchestrator) as replica:
            nursery.start_soon(orchestrator.control.replace, "b", replica.index)
            await trio.testing.wait_all_tasks_blocked(0.05)
            for action, code in REPLACED.items():
                if code is not None:
                    info = await refusal(give(orchestrator, action, index=replica.index))
                    assert (info.status, info.code) == (409, code)
                    assert WORDS[code] in info.message
            ended = await refusal(orchestrator.control.restart("b"))
            assert ended.code == "replica_busy"
            done = "none" if replica.index == 0 else "b 0"
            assert ended.message.endswith(f"The restart ends here; with new workers are: {done}.")
        await until(lambda: replica.incarnation == 2 and replica.live)


@pytest.mark.parametrize(
    ("engine", "status", "said"),
    [
        ("Sleeper", 400, "Level 1 needs a GPU."),
        ("Slow", 503, "Could not sleep replica 0 of stage 'b': its worker did not answer within 0.3 s."),
        ("Mortal", 503, "its worker ended meanwhile; the next one is awake, and is started by itself."),
    ],
)
async def test_a_sleep_that_fails_leaves_a_replica_that_takes_requests(engine: str, status: int, said: str) -> None:
    """Also one that has fallen asleep and was too late to say so."""
    overrides = (f"stages.b.engine=tests.stages.sleepers:{engine}", "limits.query_timeout_s=0.3")
    async with stub_orchestrator(*overrides) as orchestrator:
        info = await refusal(give(orchestrator, "sleep", level=1))
        assert info.status == status
        assert said in info.message
        await until(lambda: status_of(orchestrator, "b").state == "ready")
        assert text_of(await collect(orchestrator, stub(text="words"))) == "words"


async def test_who_leaves_before_a_replica_sleeps_leaves_it_awake() -> None:
    async with stub_orchestrator("stages.b.engine=tests.stages.sleepers:Slow") as orchestrator:
        with trio.move_on_after(0.2):
            await orchestrator.control.sleep("b", 0)
        assert status_of(orchestrator, "b").state == "ready"
        assert text_of(await collect(orchestrator, stub(text="words"))) == "words"
