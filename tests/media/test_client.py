"""The serving side: what it gives back, and that it leaves nothing behind however it ends."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tests.media.harness import MediaHarness, strict_wav, tone, wav

from omni_actors.actors.background import background
from omni_actors.media.limits import CLIP_RATE, FORMATS, PIECE, Limits
from omni_actors.media.service.client import MediaService
from omni_actors.protocol.errors import OmniError, stage_died

CLIP = wav(tone(0.5, 16_000), 16_000)


@asynccontextmanager
async def service(harness: MediaHarness, **options: Any) -> AsyncIterator[MediaService]:
    """A client of ``harness``, checked at the end to have left nothing."""
    media = MediaService(harness.query, **options)
    async with background() as tasks:
        tasks.start_soon(media.run)
        yield media
        with trio.fail_after(5):
            while any(harness.gauges().values()):
                await trio.lowlevel.checkpoint()
    harness.assert_empty()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        await trio.lowlevel.checkpoint()
        yield data[at : at + size]


@pytest.mark.parametrize("cut", [None, 1_000, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE])
async def test_an_upload_of_any_size_in_any_pieces_becomes_one_clip(cut: int | None) -> None:
    harness = MediaHarness()
    async with service(harness) as media:
        for data in (CLIP, wav(tone(40.0, 48_000), 48_000)):
            ref = await media.decode(data if cut is None else pieces(data, cut), filename="a.wav")
            assert ref.modality == "audio"
            assert ref.seconds == pytest.approx((len(data) - 44) / 2 / (16_000 if data is CLIP else 48_000))
            assert len(harness.deliver([ref.id])[0]) == ref.seconds * CLIP_RATE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_longest_stream_is_the_same_wherever_it_is_encoded(format: str, streaming: bool) -> None:
    limits = Limits(max_seconds=2.0)
    async with service(MediaHarness(max_seconds=2.0), limits=limits) as media:
        async with media.encoder(format, 24_000, streaming=streaming) as encoder:
            await encoder.feed(bytes(2 * 48_000))
            with pytest.raises(OmniError, match="longer than 2 s"):
                await encoder.feed(bytes(2))


async def test_a_chat_body_becomes_small_json_and_clips() -> None:
    harness = MediaHarness()
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(CLIP).decode(), "format": "wav"}}
    body_bytes = json.dumps({"messages": [{"role": "user", "content": [part, part]}]}).encode()
    async with service(harness) as media:
        for cut in (None, 777):
            data = body_bytes if cut is None else pieces(body_bytes, cut)
            async with media.parse(data) as body:
                content = json.loads(body.json)["messages"][0]["content"]
                assert content == [{"type": "audio", "index": 0}, {"type": "audio", "index": 1}]
                assert body.modalities == ("audio", "audio")
                assert harness.gauges()["clips"] == 0
                refs = await body.decode()
            assert [ref.seconds for ref in refs] == [0.5, 0.5]
            await media.discard(refs)
        async with media.parse(body_bytes):
            assert harness.gauges()["bytes"] == len(body_bytes)


@pytest.mark.parametrize("format", FORMATS)
async def test_streams_and_whole_files(format: str) -> None:
    harness = MediaHarness()
    pcm = tone(1.0)
    async with service(harness) as media:
        async with media.encoder(format, 24_000, streaming=True) as encoder:
            data = b"".join([await encoder.feed(pcm[at : at + 999]) for at in range(0, len(pcm), 999)])
            data += await encoder.finish()
        whole = await media.encode(pcm, format, 24_000)
        if format == "pcm":
            assert data == whole == pcm
        elif format == "wav":
            assert strict_wav(data)[2] == strict_wav(whole)[2] == pcm
        else:
            for file in (data, whole):
                ref = await media.decode(file)
                assert ref.seconds == pytest.approx(1.0, abs=0.1)
                await media.discard([ref])


@pytest.mark.parametrize("format", ["wav", "pcm"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_wav_and_pcm_cost_no_question_and_are_the_bytes_of_the_process(format: str, streaming: bool) -> None:
    from omni_actors.media import questions as q

    harness = MediaHarness()
    pcm = tone(0.3) + b"\x01"
    stream = harness.ask(q.EncodeOpen(owner="o", format=format, sample_rate=24_000, streaming=streaming))
    there = b"".join(
        harness.ask(question)["data"]
        for question in (q.EncodeFeed(stream=stream, data=pcm), q.EncodeFinish(stream=stream))
    )

    async def nobody(what: str, args: dict[str, Any]) -> Any:
        raise AssertionError(what)

    media = MediaService(nobody)
    async with media.encoder("pcm16" if format == "pcm" else format, 24_000, streaming=streaming) as encoder:
        here = await encoder.feed(pcm) + await encoder.finish()
    assert here == there


async def test_an_answer_of_many_pieces_is_one() -> None:
    import numpy as np

    noise = np.random.default_rng(1).integers(-32768, 32768, 2 * PIECE, dtype="<i2").tobytes()
    async with service(MediaHarness()) as media:
        ref = await media.decode(await media.encode(noise, "flac", 48_000))
        assert ref.seconds == pytest.approx(2 * PIECE / 48_000)
        await media.discard([ref])


async def test_an_unknown_format_is_refused_with_the_list() -> None:
    async with service(MediaHarness()) as media:
        for format in ("mpeg", "", "WAV"):
            with pytest.raises(OmniError, match="mp3, opus, aac, flac, wav, pcm") as caught:
                async with media.encoder(format, 24_000):
                    raise AssertionError("opened")
            assert (caught.value.info.status, caught.value.info.param) == (400, "response_format")


async def test_errors_name_the_field_and_leave_nothing() -> None:
    harness = MediaHarness(max_blob_bytes=2 * PIECE, max_seconds=2.0)
    async with service(harness) as media:
        for data, status in ((b"text", 400), (b"", 400), (bytes(3 * PIECE), 413), (wav(tone(3.0)), 400)):
            with pytest.raises(OmniError) as caught:
                await media.decode(pieces(data, 300_000), param="file")
            assert (caught.value.info.status, caught.value.info.param) == (status, "file")
        with pytest.raises(OmniError) as caught:
            async with media.parse(b"{"):
                raise AssertionError("parsed")
        assert caught.value.info.status == 400


class Stop(Exception):
    pass


async def test_an_upload_that_breaks_off_leaves_nothing() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(PIECE)
        yield bytes(PIECE)
        raise Stop

    async with service(MediaHarness()) as media:
        with pytest.raises(Stop):
            await media.decode(broken())


async def decode_long(media: MediaService) -> None:
    await media.discard([await media.decode(wav(tone(30.0, 48_000), 48_000))])


async def parse_long(media: MediaService) -> None:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(tone(20.0))).decode()}}
    async with media.parse(json.dumps({"messages": [{"content": [part] * 3}]}).encode()) as body:
        await media.discard(await body.decode())


async def encode_long(media: MediaService) -> None:
    async with media.encoder("mp3", 24_000) as encoder:
        while True:
            await encoder.feed(tone(0.5))


@pytest.mark.parametrize("work", [decode_long, parse_long, encode_long])
async def test_cancelled_at_any_moment_it_leaves_nothing(work: Callable[[MediaService], Any]) -> None:
    """Cancelled after 0, 1, 2, … answers, between a question and its answer."""
    for moment in [*range(12), 20, 30]:
        await cancelled_after(moment, work)


async def cancelled_after(moment: int, work: Callable[[MediaService], Any]) -> None:
    harness = MediaHarness()
    asked = 0

    async def query(what: str, args: dict[str, Any]) -> Any:
        nonlocal asked
        asked += what != "discard"
        if asked > moment and what != "discard":
            harness.put_raw(what, args)  # It was sent, but nobody will see the answer.
            scope.cancel()
            await trio.lowlevel.checkpoint()
        return await harness.query(what, args)

    media = MediaService(query)
    with trio.CancelScope() as scope:
        await work(media)
    async with background() as tasks:
        tasks.start_soon(media.run)
        with trio.fail_after(5):
            while any(harness.gauges().values()):
                await trio.lowlevel.checkpoint()
    harness.assert_empty()


async def test_leaving_never_waits_for_the_media_process() -> None:
    async def deaf(what: str, args: dict[str, Any]) -> Any:
        if what != "encode_open":
            await trio.sleep_forever()
        return 1

    media = MediaService(deaf)
    async with background() as tasks:
        tasks.start_soon(media.run)
        with trio.fail_after(2):
            for _ in range(100):
                with trio.move_on_after(0):
                    await media.decode(CLIP)
                async with media.encoder("mp3", 24_000):
                    pass
                await media.discard([])


async def test_a_process_that_never_answers_is_a_408(autojump_clock: trio.testing.MockClock) -> None:
    async def deaf(what: str, args: dict[str, Any]) -> Any:
        await trio.sleep_forever()

    media = MediaService(deaf, answer_s=7.0)
    with pytest.raises(OmniError) as caught:
        await media.decode(CLIP)
    assert caught.value.info.status == 408
    assert trio.current_time() == pytest.approx(autojump_clock.current_time())


async def test_a_dead_process_has_nothing_to_discard_and_the_next_one_is_served() -> None:
    harness = MediaHarness()
    dead = True

    async def query(what: str, args: dict[str, Any]) -> Any:
        if dead:
            raise stage_died("media")
        return await harness.query(what, args)

    media = MediaService(query)
    async with background() as tasks:
        tasks.start_soon(media.run)
        with pytest.raises(OmniError) as caught:
            await media.decode(CLIP)
        assert caught.value.info.status == 503
        await trio.testing.wait_all_tasks_blocked()
        dead = False
        ref = await media.decode(CLIP)
        await media.discard([ref])
        with trio.fail_after(5):
            while any(harness.gauges().values()):
                await trio.lowlevel.checkpoint()


def test_the_serving_side_imports_no_codec() -> None:
    code = (
        "import omni_actors.media.service.client, sys;"
        "print(sorted({'numpy', 'av', 'soxr', 'torch', 'omni_actors.media.worker'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
