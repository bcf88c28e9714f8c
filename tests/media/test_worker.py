"""The media process as it is served: a real worker, its clips going to another worker over the data plane."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from tests.media.harness import MediaHarness, tone, wav
from tests.media.pictures import noise, png, video

from omni_actors.actors.background import background
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import MediaRef, Request, TextDelta

REGISTRY = Registry({"ear": "tests.media.pipeline:PIPELINE", "eye": "tests.media.pipeline:EYE"})


@asynccontextmanager
async def deployment(*overrides: str, pipeline: str = "ear") -> AsyncIterator[tuple[Orchestrator, MediaService]]:
    """Both workers, checked at the end to hold nothing."""
    async with open_orchestrator(resolve(pipeline, registry=REGISTRY, overrides=overrides)) as orchestrator:
        with trio.fail_after(20):
            await orchestrator.wait_ready()
        media = MediaService(orchestrator.query_media)
        async with background() as tasks:
            tasks.start_soon(media.run)
            yield orchestrator, media
            with trio.fail_after(5):
                while await held(orchestrator):
                    await trio.sleep(0.005)


async def held(orchestrator: Orchestrator) -> float:
    [counters] = (await orchestrator.counters())["media"]
    return float(
        sum(
            counters[name]
            for name in (
                "bytes",
                "blobs",
                "clips",
                "clips_lent",
                "streams",
                "deliveries",
                "questions",
                "jobs",
                "arena_used_bytes",
            )
        )
    )


async def hear(orchestrator: Orchestrator, *clips: MediaRef) -> str:
    request = Request(task="transcription", inputs=("audio",), outputs=("text",), params={"stub": {}}, media=clips)
    async with orchestrator.open(request) as stream:
        return "".join([event.text async for event in stream if isinstance(event, TextDelta)])


def expected(*pcm: bytes) -> str:
    """What the listening stage answers to these sounds of 16 kHz."""
    samples = b"".join((np.frombuffer(piece, "<i2") / np.float32(32_768)).astype("<f4").tobytes() for piece in pcm)
    return f" {len(samples)}:{zlib.crc32(samples)}"


async def test_sound_reaches_a_models_worker_bit_for_bit() -> None:
    async with deployment() as (orchestrator, media):
        small, large = tone(0.3, 16_000), tone(60.0, 16_000)
        refs = [await media.decode(wav(pcm, 16_000)) for pcm in (small, large)]
        assert [ref.seconds for ref in refs] == [0.3, 60.0]
        assert await hear(orchestrator, *refs) == expected(small, large)
        async with media.encoder("opus", 24_000) as encoder:
            data = await encoder.feed(tone(1.0)) + await encoder.finish()
        ref = await media.decode(data)
        assert ref.seconds == pytest.approx(1.0, abs=0.001)
        await media.discard([ref])


async def test_images_videos_and_sound_reach_a_models_worker_bit_for_bit_over_one_edge() -> None:
    """Small ones in one piece, large ones in several."""
    noisy = np.random.default_rng(5).integers(0, 256, (1600, 1500, 3), np.uint8)
    files = [
        ("image", png(noise(30, 40))),
        ("video", video(20, 10, sound_hz=440.0)),
        ("audio", wav(tone(20.0, 16_000), 16_000)),
        ("image", png(noisy, compress_level=0)),
        ("video", video(60, 10, size=(480, 360), sound_hz=300.0, preset="ultrafast")),
    ]
    how = How(sound=True, fps=10.0)
    harness = MediaHarness()
    payloads = harness.payloads([harness.keep(data, modality=kind, how=how).id for kind, data in files])
    assert np.array_equal(payloads[3].tensors["pixels"], noisy)
    assert payloads[4].nbytes > 24 << 20
    whole = b"".join(tensor.tobytes() for payload in payloads for tensor in payload.tensors.values())
    async with deployment(pipeline="eye") as (orchestrator, media):
        refs = [await media.decode(data, modality=kind, how=how) for kind, data in files]
        inputs = ("audio", "image", "video")
        request = Request(task="look", inputs=inputs, outputs=("text",), params={"stub": {}}, media=tuple(refs))
        async with orchestrator.open(request) as stream:
            text = "".join([event.text async for event in stream if isinstance(event, TextDelta)])
        assert text.strip() == f"{len(whole)}:{zlib.crc32(whole)}"
        assert [round(ref.seconds) for ref in refs] == [0, 2, 20, 0, 6]


def memory(pid: int | None, what: str) -> int:
    """KiB of a process by one of the names in its status: ``VmRSS`` is all that is resident, ``RssShmem`` what is
    shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


async def test_memory_goes_back_when_nothing_is_to_be_done() -> None:
    """Of the media process (what it decoded, and what the C library keeps of freed memory) and both ends' slabs."""
    overrides = ("stages.media.limits.rest_after_s=1", "stages.ear.limits.rest_after_s=1")
    async with deployment(*overrides) as (orchestrator, media):
        maker, reader = (orchestrator.pools[name].replicas[0].pid for name in ("media", "ear"))
        assert await hear(orchestrator, await media.decode(wav(tone(1.0))))  # what is loaded late is there
        before = memory(maker, "VmRSS")
        large = wav(tone(300.0, 48_000), 48_000)
        for _ in range(2):
            assert await hear(orchestrator, await media.decode(large))
        assert memory(maker, "VmRSS") - before > 32 << 10
        assert memory(reader, "RssShmem") > 4 << 10
        with trio.fail_after(20):
            while memory(maker, "VmRSS") - before > 8 << 10 or memory(reader, "RssShmem") > 1 << 10:
                await trio.sleep(0.05)
        [counters] = (await orchestrator.counters())["media"]
        assert (counters["arena_bytes"], counters["bytes"]) == (0, 0)
        assert await hear(orchestrator, await media.decode(large))


@pytest.mark.slow
async def test_speech_is_encoded_while_minutes_are_decoded() -> None:
    async with deployment() as (_, media):
        decoded: list[MediaRef] = []

        async def decode() -> None:
            decoded.append(await media.decode(wav(tone(200.0, 48_000), 48_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(decode)
            async with media.encoder("mp3", 24_000) as encoder:
                while not decoded:
                    with trio.fail_after(2):
                        await encoder.feed(tone(0.1))
        assert decoded[0].seconds == pytest.approx(200.0)
        await media.discard(decoded)


async def test_the_media_process_dies_and_comes_back() -> None:
    """What it held is gone with a 503 that says so, never another client's sound."""
    async with deployment() as (orchestrator, media):
        lost = await media.decode(wav(tone(0.3, 16_000), 16_000))
        [replica] = orchestrator.pools["media"].replicas
        first = replica.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with trio.fail_after(20):
            while not (replica.live and replica.pid != first):
                await trio.sleep(0.01)
        other = await media.decode(wav(tone(0.2, 16_000), 16_000))
        assert other.id != lost.id
        with pytest.raises(OmniError) as caught:
            await hear(orchestrator, lost)
        assert caught.value.info.status == 503
        assert await hear(orchestrator, other) == expected(tone(0.2, 16_000))


async def test_the_media_process_is_replaced_when_nothing_of_anybody_is_left_in_it() -> None:
    """What has begun goes on in the old one, what begins meanwhile waits for the new one, and nothing is lost."""
    async with deployment() as (orchestrator, media):
        process = orchestrator.pools["media"].replicas[0]
        sound = tone(0.3, 16_000)
        late: list[MediaRef] = []

        async def begin() -> None:
            late.append(await media.decode(wav(sound, 16_000)))

        async with trio.open_nursery() as nursery:
            ref = await media.decode(wav(sound, 16_000))
            async with media.encoder("flac", 24_000) as encoder:
                data = await encoder.feed(tone(1.0))
                nursery.start_soon(orchestrator.control.replace, "media", 0)
                while not process.drained:
                    await process.changed.park()
                nursery.start_soon(begin)
                await trio.testing.wait_all_tasks_blocked(0.1)
                assert (process.incarnation, late) == (1, [])
                data += await encoder.finish()
                assert data.startswith(b"fLaC")
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert process.incarnation == 1  # a clip waits for its request still
            assert await hear(orchestrator, ref) == expected(sound)
        assert process.incarnation == 2
        assert await hear(orchestrator, *late) == expected(sound)


async def test_the_media_process_is_replaced_all_the_same_when_the_grace_is_over() -> None:
    async with deployment() as (orchestrator, media):
        ref = await media.decode(wav(tone(0.3, 16_000), 16_000))
        with trio.fail_after(10):
            await orchestrator.control.replace("media", 0, grace_s=0.2)
        with pytest.raises(OmniError) as lost:
            await hear(orchestrator, ref)
        assert lost.value.info.code == "media_lost"
        await media.discard([await media.decode(wav(tone(0.3, 16_000), 16_000))])


async def test_a_media_process_that_stands_still_fails_who_asks_it_and_is_replaced() -> None:
    """Questions are work too: nobody waits for the answer's own deadline, and no request need be in it."""
    async with deployment("stages.media.step_budget_s=1") as (orchestrator, media):
        process = orchestrator.pools["media"].replicas[0]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        with trio.fail_after(8), pytest.raises(OmniError) as failed:
            await media.decode(wav(tone(0.3, 16_000), 16_000))
        assert failed.value.info.code == "stage_died"
        assert process.history.exits["stuck"] == 1
        with trio.fail_after(10):
            while not process.live:
                await process.changed.park()
        await media.discard([await media.decode(wav(tone(0.3, 16_000), 16_000))])
