"""Mixed traffic over every connector: random sizes, aborts and deaths; what completes is right, and nothing is left."""

from __future__ import annotations

import random

import pytest
import trio

from omni_actors.protocol.errors import OmniError

from .spine import checksum, collect, idle, kill, replicas, stub, stub_orchestrator, text_of, until

CONNECTORS = {
    "shared_memory": (),
    "tcp": ("edges.b.text.connector=tcp", "edges.c.text.connector=tcp"),
}


@pytest.mark.deadline(60)
@pytest.mark.parametrize("mode", ["chunk", "full"])
@pytest.mark.parametrize("deaths", [0, 4])
@pytest.mark.parametrize("connector", CONNECTORS)
async def test_whatever_happens_to_others_a_result_is_right_and_nothing_is_left(
    connector: str, deaths: int, mode: str
) -> None:
    chance = random.Random(f"{connector}{deaths}{mode}")
    settings = (
        f"edges.b.text.mode={mode}",
        "edges.b.text.capacity=4",
        "stages.a.limits.arena_bytes=2097152",
        "stages.b.replicas=2",
        "limits.restart_delay_s=0.01",
    )
    outcomes: list[str] = []
    async with stub_orchestrator(*CONNECTORS[connector], *settings) as orchestrator:

        async def caller(name: int) -> None:
            for i in range(15):
                size, count = chance.choice((0, 100, 20_000, 300_000, 2_000_000)), chance.randint(1, 9)
                with trio.move_on_after(0.01 * chance.random() if chance.random() < 0.1 else 60) as scope:
                    try:
                        request = stub(text=f"{name}.{i},", bytes=size, pieces=count, place=chance.random() < 0.5)
                        text = text_of(await collect(orchestrator, request))
                        # Stage b hands on one piece of its own, so c sees that.
                        assert text == f"{name}.{i}," * count + (f" {checksum(size)}" if size else "")
                        outcomes.append("right")
                    except OmniError as error:
                        outcomes.append(error.info.code or "?")
                if scope.cancelled_caught:
                    outcomes.append("aborted")
                with trio.fail_after(20):
                    await until(lambda: orchestrator.ready)

        async with trio.open_nursery() as nursery:
            for name in range(8):
                nursery.start_soon(caller, name)
            for death in range(deaths):
                await until(lambda death=death: len(outcomes) > 20 * (death + 1))  # type: ignore[misc]
                await until(lambda: all(replica.pid is not None for replica in replicas(orchestrator)))
                kill(chance.choice(replicas(orchestrator)).pid)
        with trio.fail_after(20):
            await until(lambda: all(replica.live for replica in replicas(orchestrator)))
            await idle(orchestrator)
        assert text_of(await collect(orchestrator, stub(text="last", bytes=1 << 20))) == f"last {checksum(1 << 20)}"
    assert len(outcomes) == 120
    allowed = {"right", "aborted"} | ({"stage_died", "stage_unavailable", "link_lost"} if deaths else set())
    assert set(outcomes) <= allowed
    assert outcomes.count("right") >= (40 if deaths else 90)
