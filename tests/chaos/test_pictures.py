"""A worker that is killed while it makes pictures: every picture arrives whole, once, and within one level."""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
from PIL import Image
from tests.chaos.mortal import fatal_id

from omni_actors.models.tiny.cache import cached
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import Completed, Event, MediaChunk, Request, StepProgress
from omni_actors.stages.replica import StageReplica

pytestmark = pytest.mark.slow

PATIENCE_S = 300.0
"""Longer than a worker's start on a machine that does much else."""

STEPS, EVERY, N = 21, 3, 2
LEVEL = 1
PLACES = ("encode", *(f"step {step}" for step in range(STEPS)), *(f"decode {index}" for index in range(N)))
"""Everywhere: each step from the first to the last, those behind a preview among them, and behind the first picture."""


SAMPLE = ("encode", "step 0", "step 4", f"step {2 * EVERY}", f"step {STEPS - 1}", *(f"decode {i}" for i in range(N)))
"""A place of each kind; ``--every-death`` takes all."""

SOMEWHERE = (f"step {random.Random(13).randrange(EVERY, STEPS)}",)
"""A step behind a preview: a worker with a model takes long to start."""


def pixels_of(chunk: MediaChunk) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    with Image.open(io.BytesIO(chunk.data)) as image:
        return np.asarray(image, np.int16)


async def made(orchestrator: Orchestrator, id: str, kill: StageReplica | None = None) -> list[Event]:
    """Make pictures. The worker of ``kill`` is killed behind the first preview."""
    image = ImageGeneration(prompt="a seven", n=N, seed=5, steps=STEPS, previews=EVERY, progress=True)
    request = Request(task="image", outputs=("image",), params={"image": image}, id=id)
    events: list[Event] = []
    with trio.fail_after(PATIENCE_S):
        async with orchestrator.open(request) as stream:
            async for event in stream:
                events.append(event)
                if kill is not None and isinstance(event, MediaChunk):
                    assert kill.pid is not None
                    os.kill(kill.pid, signal.SIGKILL)
                    kill = None
    return events


def check(events: Sequence[Event], undisturbed: dict[int, MediaChunk] | None) -> dict[int, MediaChunk]:
    """Look at each event in turn, and return the pictures."""
    whole: dict[int, MediaChunk] = {}
    steps: dict[int, int] = {}
    previews: dict[int, int] = {}
    for event in events[:-1]:
        if isinstance(event, StepProgress):
            assert event.index not in whole
            assert steps.get(event.index, 0) < event.step <= event.steps == STEPS
            steps[event.index] = event.step
            continue
        assert isinstance(event, MediaChunk)
        index = event.meta["index"]
        assert index not in whole, "a picture twice, or a preview behind it"
        if step := event.meta.get("preview"):
            assert step > previews.get(index, 0)
            assert step % EVERY == 0
            previews[index] = step
        else:
            whole[index] = event
        difference = 0 if undisturbed is None or step else _difference(event, undisturbed[index])
        assert difference <= LEVEL
    assert isinstance(events[-1], Completed)
    assert sorted(whole) == list(range(N))
    assert [whole[index].meta["seed"] for index in range(N)] == [5, 6]
    usage = events[-1].usage["image"]
    assert (usage.images, usage.steps) == (N, N * STEPS)
    return whole


def _difference(one: MediaChunk, other: MediaChunk) -> int:
    return int(np.abs(pixels_of(one) - pixels_of(other)).max())


@asynccontextmanager
async def deployment(pipeline: str, model: str, *overrides: str) -> AsyncIterator[Orchestrator]:
    registry = Registry({"mortal": f"tests.chaos.mortal.pipelines:{pipeline}"})
    overrides = ("limits.restart_delay_s=0.01", *overrides)
    plan = resolve(model, pipeline="mortal", registry=registry, platform="cpu", overrides=overrides)
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(PATIENCE_S):
            await orchestrator.wait_ready()
        yield orchestrator


async def kill_at(orchestrator: Orchestrator, places: Sequence[str]) -> None:
    """Compare the pictures of a request whose worker dies at each of these places with the undisturbed ones."""
    painter, writer = (orchestrator.pools[name].replicas[0] for name in ("image", "pictures"))
    undisturbed = check(await made(orchestrator, "undisturbed"), None)
    assert _difference(undisturbed[0], undisturbed[1]) > 10 * LEVEL
    for place in places:
        life = painter.incarnation
        events = await made(orchestrator, fatal_id(life, place))
        assert painter.incarnation == life + 1, f"the worker outlived {place}"
        check(events, undisturbed)
    assert orchestrator.resumes().resumed["image"] == len(places)
    life = writer.incarnation
    check(await made(orchestrator, "undisturbed", kill=writer), undisturbed)
    with trio.fail_after(PATIENCE_S):
        while writer.incarnation == life:
            await orchestrator.changed.park()


@pytest.mark.deadline(600)
async def test_a_death_anywhere_in_a_picture_costs_no_picture(request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("--every-death")
    async with deployment("PAINTER", "mortal", "stages.image.options.step_s=0.005") as orchestrator:
        await kill_at(orchestrator, PLACES if every else SAMPLE)


@pytest.mark.deadline(3600)
async def test_a_death_in_a_diffusion_model_costs_no_picture(request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("--every-death")
    folder = str(cached("sd3"))
    async with deployment("DIFFUSION", folder, "stages.image.dtype=float32") as orchestrator:
        await kill_at(orchestrator, PLACES if every else SOMEWHERE)
