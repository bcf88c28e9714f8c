"""A replica of two ranks behind the orchestrator: the ranks live and die as one, and their requests outlive them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from tests.orchestrator.spine import idle, until
from tests.worker.engines import tiny_models

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Request, TextDelta
from omni_actors.stages.replica import StageReplica

pytestmark = [pytest.mark.slow, pytest.mark.deadline(600)]

TOKENS = 80

START_S = 120
"""Two processes import transformers at once, perhaps beside others that do."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tiny_models.save(tmp_path_factory.mktemp("ranks"), "qwen3"))


@asynccontextmanager
async def two_ranks(folder: Path, *overrides: str) -> AsyncIterator[tuple[Orchestrator, StageReplica]]:
    """A ready deployment of the model over two ranks, however few cores this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "cores", lambda self: 2)
        plan = resolve(str(folder), platform="cpu", overrides=["stages.llm.strategy.tensor=2", *overrides])
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(START_S):
            await orchestrator.wait_ready()
        yield orchestrator, orchestrator.pools["llm"].replicas[0]
        with trio.fail_after(10):
            await idle(orchestrator)


def say(index: int, tokens: int = TOKENS) -> Request:
    prompt = Prompt(token_ids=[(index * 31 + i * 7) % 250 for i in range(20 + index)])
    sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    return Request(task="completion", params={"prompt": prompt, "sampling": sampling})


@dataclass
class Clients:
    """Four clients at once: the text of each so far, and its number of tokens."""

    texts: list[str] = field(default_factory=lambda: [""] * 4)
    tokens: list[int] = field(default_factory=lambda: [0] * 4)

    async def run(self, orchestrator: Orchestrator) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(self._one, orchestrator, index)

    async def _one(self, orchestrator: Orchestrator, index: int) -> None:
        async with orchestrator.open(say(index)) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    self.texts[index] += event.text
                    self.tokens[index] += len(event.token_ids)

    async def in_mid_answer(self) -> None:
        """Wait until each client has some text, and no client all of its text."""
        await until(lambda: min(self.tokens) > 2)
        assert max(self.tokens) < TOKENS

    def said(self) -> list[str]:
        assert self.tokens == [TOKENS] * 4
        return self.texts


def ranks_of(replica: StageReplica) -> list[int]:
    pids: list[int] = replica.info["ranks"]
    return pids


async def until_gone(pids: list[int], within_s: float = 20) -> None:
    """Wait until none of these processes is left."""
    with trio.fail_after(within_s):
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


FAULTS = {
    "the leader is killed": (0, signal.SIGKILL, "crash", "ended without a message"),
    "the follower is killed": (1, signal.SIGKILL, "crash", "RankLost in the worker's loop: rank 1 (pid"),
    "the follower stands still": (1, signal.SIGSTOP, "stuck", "the worker is stuck"),
}
"""What happens in mid-answer: to which rank, by which signal, and what is said of it."""


async def test_ranks_live_and_die_together_and_requests_outlive_them(folder: Path) -> None:
    settings = [f"stages.llm.{name}_budget_s=5" for name in ("step", "compile")]
    settings.append(f"limits.resume_wait_s={START_S}")
    async with two_ranks(folder, *settings) as (orchestrator, replica):
        undisturbed = Clients()
        await undisturbed.run(orchestrator)
        assert len(set(undisturbed.said())) == 4
        (status,) = (it for it in orchestrator.control.status() if it.stage == replica.stage.name)
        assert (status.pid, *status.ranks) == (replica.pid, *ranks_of(replica))
        assert status.devices == ("cpu", "cpu")
        for rank, number, cause, words in FAULTS.values():
            before, life, clients = ranks_of(replica), replica.incarnation, Clients()
            assert len(set(before)) == 2
            with trio.fail_after(START_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(clients.run, orchestrator)
                    await clients.in_mid_answer()
                    os.kill(before[rank], number)
                    await until_gone(before)
            assert clients.said() == undisturbed.said()
            assert replica.incarnation == life + 1
            last = replica.history.last_exit
            assert last is not None
            assert (last.cause, words in last.error.message) == (cause, True), last
            assert not set(before) & set(ranks_of(replica))
        # And while it has nothing to do.
        before = ranks_of(replica)
        os.kill(before[1], signal.SIGKILL)
        with trio.fail_after(START_S):
            await until(lambda: replica.incarnation == life + 2 and replica.live)
        await until_gone(before)
        assert replica.history.last_exit is not None
        assert f"rank 1 (pid {before[1]}) has ended" in replica.history.last_exit.error.message
        before = ranks_of(replica)
    await until_gone(before)


async def test_a_rank_that_cannot_load_is_reported(folder: Path, tmp_path: Path) -> None:
    """Both ranks refuse, and the message of one of them reaches the operator."""
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(Exception) as caught:
        async with two_ranks(tmp_path):
            pass
    assert "has neither model.safetensors nor" in str(caught.value) or "missing" in str(caught.value)
