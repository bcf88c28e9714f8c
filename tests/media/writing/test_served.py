"""Pictures as they are served: the stub's worker paints, the stage ``pictures`` writes, the client gets files."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
from tests.media.pictures import png
from tests.media.writing.harness import pixels_of, smooth

from omni_actors.actors.background import background
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.models.stub.painter import painted, unfinished
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import Completed, MediaChunk, MediaRef, Request, StepProgress


@asynccontextmanager
async def deployment(*overrides: str) -> AsyncIterator[Orchestrator]:
    """The workers, checked at the end to hold nothing."""
    async with open_orchestrator(resolve("stub-image", platform="cpu", overrides=overrides)) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
        yield orchestrator
        with trio.fail_after(10):
            while await held(orchestrator):
                await trio.sleep(0.005)


async def held(orchestrator: Orchestrator) -> float:
    counters = await orchestrator.counters()
    return sum(
        it[name]
        for stage in ("image", "pictures")
        for it in counters[stage]
        for name in ("jobs", "arena_used_bytes", "credits_outstanding", "bytes", "pictures_writing")
        if name in it
    )


def asked(media: tuple[MediaRef, ...] = (), **image: Any) -> Request:
    task, inputs = ("image_edit", ("text", "image")) if media else ("image", ("text",))
    section = {"prompt": "a quiet sea", "seed": 5, **image}
    return Request(
        task=task, inputs=inputs, outputs=("image",), params={"image": ImageGeneration(**section)}, media=media
    )


async def events_of(orchestrator: Orchestrator, request: Request) -> list[Any]:
    async with orchestrator.open(request) as stream:
        return [event async for event in stream]


def chunks_of(events: list[Any]) -> list[MediaChunk]:
    return [event for event in events if isinstance(event, MediaChunk)]


async def test_pictures_previews_and_progress_reach_the_client() -> None:
    async with deployment("stages.image.options.step_s=0.02") as orchestrator:
        events = await events_of(orchestrator, asked(n=2, steps=4, previews=2, progress=True, width=48, height=80))
        chunks = chunks_of(events)
        whole = {it.meta["index"]: it for it in chunks if "preview" not in it.meta}
        assert whole.keys() == {0, 1}
        for index, chunk in whole.items():
            meta = {"index": index, "seed": 5 + index, "format": "png", "width": 48, "height": 80}
            assert (chunk.modality, chunk.meta) == ("image", meta)
            assert np.array_equal(pixels_of(chunk.data), painted("a quiet sea", 5 + index, 48, 80))
        previews = [it for it in chunks if "preview" in it.meta]
        assert [(it.meta["index"], it.meta["preview"]) for it in previews] == [(0, 2), (1, 2)]
        wanted = unfinished(painted("a quiet sea", 5, 48, 80), 5, 2, 4)
        assert np.array_equal(pixels_of(previews[0].data), wanted)
        assert [it.step for it in events if isinstance(it, StepProgress) and it.index == 1][-1] == 4
        [completed] = [it for it in events if isinstance(it, Completed)]
        assert completed.usage["image"].images == 2
        assert completed.usage["image"].steps == 8


async def test_a_picture_of_4096_by_4096_passes_while_others_do() -> None:
    """Each takes a slot of 64 MiB, which is more than the arena's budget here: a request may always have one."""
    async with deployment("stages.image.limits.arena_bytes=33554432") as orchestrator:
        found: dict[int, list[Any]] = {}

        async def ask(place: int, **image: Any) -> None:
            found[place] = await events_of(orchestrator, asked(steps=2, **image))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: ask(0, n=2, width=4096, height=4096, previews=1))
                nursery.start_soon(lambda: ask(1, n=1, width=2048, height=2048, seed=9))
                nursery.start_soon(lambda: ask(2, n=4))
        for place, (seed, n) in enumerate([(5, 2), (9, 1), (5, 4)]):
            whole = [it for it in chunks_of(found[place]) if "preview" not in it.meta]
            assert sorted(it.meta["seed"] for it in whole) == list(range(seed, seed + n))
            assert all("piece" not in it.meta for it in whole)
        chunk = next(it for it in chunks_of(found[0]) if it.meta["index"] == 1 and "preview" not in it.meta)
        assert np.array_equal(pixels_of(chunk.data), painted("a quiet sea", 6, 4096, 4096))


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    generator = np.random.default_rng(3)
    async with deployment("stages.image.options.step_s=0.002") as orchestrator:
        for format in ("png", "webp", "jpeg"):

            async def leave(seed: int, format: str = format) -> None:
                with trio.move_on_after(float(generator.uniform(0.001, 0.12))):
                    size = int(generator.choice([64, 512, 1280]))
                    request = asked(seed=seed, n=2, steps=4, previews=1, format=format, width=size, height=size)
                    await events_of(orchestrator, request)

            async with trio.open_nursery() as nursery:
                for seed in range(12):
                    nursery.start_soon(leave, seed)
        assert len(chunks_of(await events_of(orchestrator, asked()))) == 1


async def test_a_refusal_comes_before_the_stages_work() -> None:
    async with deployment() as orchestrator:
        with pytest.raises(OmniError) as caught:
            await events_of(orchestrator, asked(format="jpeg", background="transparent"))
        assert (caught.value.info.status, caught.value.info.param) == (400, "background")
        assert len(chunks_of(await events_of(orchestrator, asked()))) == 1


async def test_pictures_to_edit_and_their_mask_reach_the_model() -> None:
    base = smooth(64, 64)
    mask = np.full((64, 64, 4), 255, np.uint8)
    mask[20:40, 10:50, 3] = 0
    async with deployment() as orchestrator:
        media = MediaService(orchestrator.query_media)
        async with background() as tasks:
            tasks.start_soon(media.run)
            picture = await media.decode(png(base), modality="image", how=How(alpha=True))
            assert (picture.width, picture.height) == (64, 64)
            [chunk] = chunks_of(await events_of(orchestrator, asked((picture,), pictures=1)))
            assert np.array_equal(pixels_of(chunk.data), 255 - base)
            picture = await media.decode(png(base), modality="image", how=How(alpha=True))
            part = await media.decode(png(mask), modality="image", how=How(mask_of=(picture.width, picture.height)))
            [chunk] = chunks_of(await events_of(orchestrator, asked((picture, part), pictures=1, mask=True)))
    wanted = base.copy()
    wanted[20:40, 10:50] = painted("a quiet sea", 5, 64, 64)[20:40, 10:50]
    assert np.array_equal(pixels_of(chunk.data), wanted)


@pytest.mark.parametrize("moment", ["preview", "picture"])
async def test_a_picture_is_delivered_once_although_its_writer_dies(moment: str) -> None:
    slow = ("stages.image.options.step_s=0.02", "stages.pictures.options.slice_s=0.001")
    async with deployment(*slow, "limits.restart_delay_s=0.05") as orchestrator:
        request = asked(n=3, steps=3, previews=1, width=1024, height=1024)
        chunks: list[MediaChunk] = []
        killed = False
        with trio.fail_after(60):
            async with orchestrator.open(request) as stream:
                async for event in stream:
                    if not isinstance(event, MediaChunk):
                        continue
                    chunks.append(event)
                    if not killed and ("preview" in event.meta) is (moment == "preview"):
                        pid = orchestrator.pools["pictures"].replicas[0].pid
                        assert pid is not None
                        os.kill(pid, signal.SIGKILL)
                        killed = True
        assert killed
        whole = [it for it in chunks if "preview" not in it.meta]
        assert sorted(it.meta["index"] for it in whole) == [0, 1, 2]
        for it in whole:
            assert np.array_equal(pixels_of(it.data), painted("a quiet sea", it.meta["seed"], 1024, 1024))


async def test_pictures_travel_by_tcp_too() -> None:
    async with deployment("edges.pictures.pixels.connector=tcp") as orchestrator:
        [chunk] = chunks_of(await events_of(orchestrator, asked(width=2048, height=2048)))
    assert np.array_equal(pixels_of(chunk.data), painted("a quiet sea", 5, 2048, 2048))
