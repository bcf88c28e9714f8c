"""An engine that compiles late in its life says so, and is not taken for stuck."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing
from tests.stages.test_liveness import STAGE
from tests.worker.engines.diffusion.driver import hello

from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.liveness import FIRST_STEPS, Activity
from omni_actors.stages.liveness import GRACE_S, Heartbeat, LivenessPage, Watch
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.diffusion import DiffusionEngine
from omni_actors.worker.liveness import Liveness
from omni_actors.worker.loop import Worker

LATE = 900


class Compiles(Engine):
    """Compiles in its 900th step. ``look`` is called in every step: before, within and behind the compilation."""

    look: Callable[[int, str], None]
    steps = 0

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def admit(self, work: Work) -> None: ...

    def feed(self, key: int, port: str, payload: Any, end: bool) -> bool:
        return True

    def abort(self, key: int) -> None: ...

    @property
    def runnable(self) -> bool:
        return self.steps < LATE

    def step(self, out: Outbox) -> bool:
        self.steps += 1
        self.look(self.steps, "before")
        if self.steps == LATE:
            with self.compiling():
                self.look(self.steps, "within")
            self.look(self.steps, "behind")
        return True


@contextmanager
def watched(engine: Engine) -> Iterator[tuple[Worker, LivenessPage]]:
    """Run an engine under the loop, with a page that somebody reads."""
    page = LivenessPage()
    liveness = Liveness(os.dup(page.fd))
    page.handed_over()
    ours, theirs = socket.socketpair()
    worker = Worker(theirs, engine.hello, engine, {}, liveness=liveness)
    try:
        yield worker, page
    finally:
        worker.close()
        liveness.close()
        page.close()
        ours.close()
        theirs.close()


def plain_hello() -> Hello:
    return Hello(version=PROTOCOL_VERSION, stage="a", replica=0, incarnation=1, engine="", adapter="")


def test_a_compilation_in_a_late_step_is_told_as_such() -> None:
    engine = Compiles(plain_hello())
    told: dict[tuple[int, str], Activity] = {}
    with watched(engine) as (worker, page):
        engine.look = lambda step, where: told.__setitem__((step, where), page.read().activity)
        while engine.runnable:
            worker.turn()
    assert told[FIRST_STEPS, "before"] is Activity.COMPILING
    assert told[FIRST_STEPS + 1, "before"] is Activity.WORKING
    assert told[LATE, "before"] is Activity.WORKING
    assert told[LATE, "within"] is Activity.COMPILING
    assert told[LATE, "behind"] is Activity.WORKING


def test_a_compilation_that_raises_is_over() -> None:
    liveness = Liveness()
    liveness.turn()
    with pytest.raises(ValueError), liveness.compiling():
        raise ValueError
    assert liveness._words[1] == Activity.WORKING
    liveness.close()


async def stuck_after(activity: Activity, seconds: float) -> bool:
    """Whether a worker with requests that shows nothing for so long, in this activity, is killed."""

    class Page:
        beat = Heartbeat(LATE, activity, trio.current_time())

        def read(self) -> Heartbeat:
            return self.beat

    watch = Watch(STAGE, Page(), lambda: True, clock=trio.current_time)
    with trio.move_on_after(seconds):
        await watch.until_stuck()
        return True
    return False


async def test_a_late_compilation_may_take_its_budget_and_a_step_may_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    longer = STAGE.step_budget_s + 10 * GRACE_S
    assert longer < STAGE.compile_budget_s
    assert await stuck_after(Activity.WORKING, longer)
    assert not await stuck_after(Activity.COMPILING, longer)
    assert await stuck_after(Activity.COMPILING, STAGE.compile_budget_s + 10 * GRACE_S)


def test_the_adapter_of_a_diffusion_stage_can_tell() -> None:
    entered: list[str] = []

    @contextmanager
    def compiling() -> Iterator[None]:
        entered.append("compiling")
        yield

    engine = DiffusionEngine(hello())
    engine.load(lambda text, fraction: None)
    with engine._adapter.compiling():
        pass
    assert entered == []
    engine.compiling = compiling
    with engine._adapter.compiling():
        assert entered == ["compiling"]
