"""Videos: frames at an even pace whatever the container, their sound when it is asked for, or a 400."""

from __future__ import annotations

import io
import random
import resource
import time
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from tests.media.harness import MediaHarness, container, loudness, tone, wav
from tests.media.pictures import announcing, encoded, endless_jpeg, motion_jpeg, noise, png, shade, shades, video

from omni_actors.connectors.payload import Payload
from omni_actors.media import questions as q
from omni_actors.media.limits import CLIP_RATE
from omni_actors.media.worker.video import choose_frames
from omni_actors.protocol.errors import OmniError


def decoded(harness: MediaHarness, data: bytes, **hints: Any) -> Payload:
    (payload,) = harness.payloads([harness.keep(data, modality="video", **hints).id])
    harness.assert_empty()
    assert payload.kind == "video"
    frames = payload.tensors["frames"]
    assert frames.dtype == np.uint8
    assert frames.shape[3] == 3
    assert payload.meta["length"] == len(frames)
    return payload


def refused(harness: MediaHarness, data: bytes, **hints: Any) -> OmniError:
    with pytest.raises(OmniError) as caught:
        harness.keep(data, modality="video", param="video_url.url", **hints)
    harness.assert_empty()
    info = caught.value.info
    assert (info.status, info.param) == (400, "video_url.url")
    assert len(info.message) < 200
    return caught.value


def near(found: list[int], numbers: list[int]) -> bool:
    return len(found) == len(numbers) and all(abs(it - shade(n)) <= 3 for it, n in zip(found, numbers, strict=True))


@pytest.mark.parametrize(
    ("format", "codec"),
    [
        ("mp4", "libx264"),
        ("mov", "mpeg4"),
        ("matroska", "libx264"),
        ("webm", "libvpx"),
        ("webm", "libvpx-vp9"),
        ("avi", "mpeg4"),
        ("avi", "mjpeg"),
    ],
)
def test_two_frames_a_second_of_every_container(format: str, codec: str) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    payload = decoded(MediaHarness(), video(40, 10, format=format, codec=codec, pixels=pixels))
    assert payload.tensors["frames"].shape == (8, 48, 64, 3)
    assert near(shades(payload.tensors["frames"]), [0, 5, 10, 15, 20, 25, 30, 35])
    assert payload.meta["fps"] == pytest.approx(2.0, rel=0.01)
    assert payload.meta["seconds"] == pytest.approx(4.0, rel=0.01)
    assert "samples" not in payload.tensors


def test_frames_that_are_stored_out_of_order_come_in_theirs() -> None:
    payload = decoded(MediaHarness(), video(48, 12, bf="3", g="24"))
    assert near(shades(payload.tensors["frames"]), [0, 6, 12, 18, 24, 30, 36, 42])


@pytest.mark.parametrize(
    ("total", "rate", "fps"),
    [(40, 10.0, 2.0), (300, 30.0, 2.0), (7, 24.0, 2.0), (1000, 25.0, 1.0), (90, 29.97, 2.0), (3000, 30.0, 2.0)],
)
def test_at_a_constant_rate_the_frames_are_those_that_transformers_chooses(total: int, rate: float, fps: float) -> None:
    """``Qwen2VLVideoProcessor.sample_frames``, which cannot be imported without torchvision: its two formulas."""
    count = int(min(max(total / rate * fps, 4), 128, total) // 2 * 2)
    theirs = np.arange(0, total, total / count).astype(int)[:count]
    times = [number / rate for number in range(total)]
    assert choose_frames(times, total / rate, fps, 4, 128) == theirs.tolist()


def test_a_video_without_a_constant_rate_is_sampled_by_time() -> None:
    """A screen recording: a frame only when something changes."""
    times = [0, 100, 200, 300, 2000, 2100, 3900, 3950]
    payload = decoded(MediaHarness(), video(8, 10, times=times, format="matroska", codec="libx264"))
    assert payload.meta["seconds"] == pytest.approx(3.95 * 8 / 7)
    assert near(shades(payload.tensors["frames"]), [0, 3, 3, 3, 5, 5, 5, 7])  # each 0.56 s


def test_a_short_video_has_at_least_four_frames_if_it_has_so_many() -> None:
    assert len(decoded(MediaHarness(), video(10, 10)).tensors["frames"]) == 4
    assert len(decoded(MediaHarness(), video(3, 10)).tensors["frames"]) == 2
    payload = decoded(MediaHarness(), video(1, 10))
    assert len(payload.tensors["frames"]) == 1
    assert payload.meta["seconds"] == pytest.approx(0.1)


def test_rate_and_number_of_frames_can_be_asked_for_up_to_the_limits() -> None:
    data = video(60, 10)
    assert len(decoded(MediaHarness(), data, how=q.How(fps=5.0)).tensors["frames"]) == 30
    assert len(decoded(MediaHarness(), data, how=q.How(max_frames=6)).tensors["frames"]) == 6
    assert (
        len(decoded(MediaHarness(max_video_frames=8), data, how=q.How(fps=5.0, max_frames=30)).tensors["frames"]) == 8
    )
    payload = decoded(MediaHarness(), data, how=q.How(max_frames=6))
    assert payload.meta["fps"] == pytest.approx(1.0)


def test_large_frames_are_shrunk_to_their_share() -> None:
    data = video(8, 2, size=(320, 160))
    assert decoded(MediaHarness(max_sampled_pixels=12_800), data).tensors["frames"].shape == (8, 80, 160, 3)
    assert decoded(MediaHarness(max_video_pixels=8 * 3_200), data).tensors["frames"].shape == (8, 40, 80, 3)


def test_a_video_that_changes_its_size_keeps_that_of_its_first_frame() -> None:
    sink = io.BytesIO()
    with av.open(sink, "w", format="webm") as file:
        stream: Any = file.add_stream("libvpx", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        other: Any = av.CodecContext.create("libvpx", "w")
        other.width, other.height, other.pix_fmt = 128, 32, "yuv420p"
        other.framerate, other.time_base = 10, Fraction(1, 10)
        for number in range(20):
            encoder, (width, height) = (stream, (64, 48)) if number < 10 else (other, (128, 32))
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), shade(number), np.uint8), "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            for packet in encoder.encode(frame):
                packet.stream = stream
                file.mux(packet)
    payload = decoded(MediaHarness(), sink.getvalue())
    assert payload.tensors["frames"].shape == (4, 48, 64, 3)
    assert near(shades(payload.tensors["frames"]), [0, 5, 10, 15])


def test_a_phones_video_stands_upright() -> None:
    data = bytearray(video(4, 4, size=(64, 32)))
    at = data.index(b"tkhd") + 4 + 40
    quarter = (0, 0x10000, 0, -0x10000, 0, 0, 32 << 16, 0, 0x40000000)
    data[at : at + 36] = b"".join(value.to_bytes(4, "big", signed=value < 0) for value in quarter)
    assert decoded(MediaHarness(), bytes(data)).tensors["frames"].shape == (4, 64, 32, 3)


def test_the_sound_comes_along_when_it_is_asked_for() -> None:
    data = video(30, 10, sound_hz=440.0)
    assert "samples" not in decoded(MediaHarness(), data).tensors
    harness = MediaHarness()
    info = harness.keep(data, modality="video", how=q.How(sound=True))
    assert info.modality == "video"
    assert info.seconds == pytest.approx(3.0)
    (payload,) = harness.payloads([info.id])
    samples = payload.tensors["samples"]
    assert samples.dtype == np.float32
    assert payload.meta["audio_length"] == len(samples)
    assert payload.meta["sample_rate"] == CLIP_RATE
    assert len(samples) / CLIP_RATE == pytest.approx(3.0, abs=0.1)
    assert loudness(samples) == pytest.approx(0.35, abs=0.03)
    spectrum = np.abs(np.fft.rfft(samples))
    assert np.argmax(spectrum) * CLIP_RATE / len(samples) == pytest.approx(440, abs=2)
    harness.assert_empty()


def test_a_silent_video_has_no_samples_whatever_is_asked_for() -> None:
    assert "samples" not in decoded(MediaHarness(), video(10, 10), how=q.How(sound=True)).tensors


def test_a_long_video_with_sound_arrives_whole() -> None:
    harness = MediaHarness(video_fps=10.0)
    data = video(40, 10, size=(640, 360), sound_hz=300.0, format="matroska", preset="ultrafast")
    (payload,) = harness.payloads([harness.keep(data, modality="video", how=q.How(sound=True)).id])
    assert payload.nbytes > 24 << 20
    assert near(shades(payload.tensors["frames"]), list(range(40)))
    assert len(payload.tensors["samples"]) == payload.meta["audio_length"]
    harness.assert_empty()


# What is no video, or a trap.

GOOD = video(20, 10, sound_hz=440.0)
BAD = {
    "empty": b"",
    "text": b"not a video at all, and long enough to look like something",
    "sound": wav(tone(0.5)),
    "sound in a video's container": container("mp4", "aac", tone(0.5, 48_000)),
    "a picture": png(np.zeros((9, 9, 3), np.uint8)),
    "a playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "a list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "header alone": GOOD[:100],
    "no frames": video(0, 10),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_video_is_a_400_that_names_the_field(name: str) -> None:
    assert refused(MediaHarness(), BAD[name]).info.code == "invalid_video"


def test_a_video_that_breaks_off_is_what_there_is_of_it() -> None:
    data = video(200, 10, format="matroska", size=(160, 120))
    payload = decoded(MediaHarness(), data[: len(data) * 2 // 3])
    assert 4 <= len(payload.tensors["frames"]) < 40


def test_pictures_of_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    error = refused(MediaHarness(max_frame_pixels=64 * 47), video(4))
    assert "64 × 48" in error.info.message


def test_a_video_that_is_too_long_is_refused_before_it_is_decoded() -> None:
    assert refused(MediaHarness(max_video_seconds=1.0), GOOD).info.code == "video_too_long"
    assert refused(MediaHarness(), GOOD, how=q.How(sound=True), max_seconds=1.0).info.code == "audio_too_long"


@pytest.mark.parametrize("packets", [1_000_000, 10_000_000, (1 << 32) - 1])
@pytest.mark.parametrize("modality", ["video", "audio"])
def test_a_small_file_that_announces_billions_of_packets_costs_little(packets: int, modality: str) -> None:
    harness = MediaHarness()
    data = announcing(packets)
    assert len(data) < 4096
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(OmniError) as caught:
        harness.keep(data, modality=modality)
    assert caught.value.info.status == 400
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_while_a_video_is_decoded_its_memory_counts() -> None:
    harness = MediaHarness(max_bytes=1 << 20)
    with pytest.raises(OmniError) as caught:
        harness.keep(video(40, 10, size=(320, 240), preset="ultrafast"), modality="video")
    assert caught.value.info.status == 429
    harness.assert_empty()


def test_a_minute_of_video_holds_nobody_up() -> None:
    harness = MediaHarness()
    data = video(600, 10, size=(320, 240), sound_hz=440.0, preset="ultrafast")
    job = harness.put(q.Decode(owner="o", modality="video", blob=harness.blob(data), how=q.How(sound=True)))
    longest = 0.0
    while job not in harness.replies:
        began = time.perf_counter()
        harness.engine.step(harness)
        longest = max(longest, time.perf_counter() - began)
    assert longest < 0.25
    info = q.parse(harness.take(job), q.MediumInfo)
    harness.ask(q.Discard(clips=(info.id,)))
    harness.assert_empty()


def test_a_frame_that_would_take_for_ever_is_left_out() -> None:
    """A packet is decoded in one call, which holds up the whole process."""
    harness = MediaHarness()
    good = encoded(Image.fromarray(noise(64, 64)), "JPEG")
    assert "decoded" in refused(harness, motion_jpeg([endless_jpeg(1000, 3000)], 1000)).info.message
    frames = decoded(harness, motion_jpeg([good, endless_jpeg(64, 101), good], 64)).tensors["frames"]
    assert len(frames) == 2


def test_a_decode_that_is_left_frees_everything_at_any_moment() -> None:
    data = video(60, 10, sound_hz=440.0)
    for steps in (1, 2, 3, 5, 8):
        harness = MediaHarness(slice_s=0.0001)
        harness.put(q.Decode(owner="o", modality="video", blob=harness.blob(data), how=q.How(sound=True)))
        for _ in range(steps):
            harness.engine.step(harness)
        harness.ask(q.Discard(owners=("o",)))
        harness.assert_empty()


def test_any_damage_is_a_video_or_a_400() -> None:
    dice = random.Random(7)
    harness = MediaHarness()
    for good in (GOOD, video(10, 10, format="webm", codec="libvpx"), video(10, 10, format="avi", codec="mpeg4")):
        for _ in range(40):
            bad = bytearray(good)
            for _ in range(dice.randint(1, 8)):
                bad[dice.randrange(len(bad))] = dice.randrange(256)
            data = bytes(bad[: dice.randint(len(bad) // 2, len(bad))])
            status = 400
            try:
                harness.payloads([harness.keep(data, modality="video", how=q.How(sound=True)).id])
            except OmniError as error:
                status = error.info.status
            assert status == 400
            harness.assert_empty()


def test_choosing_frames_never_leaves_the_video() -> None:
    dice = random.Random(3)
    for _ in range(300):
        total = dice.randint(1, 400)
        times = sorted(dice.uniform(0, 60) for _ in range(total))
        times[0] = 0.0
        shown = choose_frames(times, max(times[-1], 0.01), dice.uniform(0.1, 30), 4, dice.randint(1, 64))
        assert 1 <= len(shown) <= max(64, 4)
        assert shown == sorted(shown)
        assert 0 <= shown[0] <= shown[-1] < total
