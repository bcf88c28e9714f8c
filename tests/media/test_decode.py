"""Decoding: whatever a client calls audio becomes mono float32 at 16 kHz, or a 400 that says why not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.media.harness import MediaHarness, container, flac, loudness, silent_video, snr_db, tone, wav

from omni_actors.media.limits import CLIP_RATE
from omni_actors.protocol.errors import OmniError


def refused(harness: MediaHarness, data: bytes, **hints: Any) -> OmniError:
    with pytest.raises(OmniError) as caught:
        harness.decode(data, param="file", **hints)
    harness.assert_empty()
    info = caught.value.info
    assert info.status == 400
    assert info.param == "file"
    assert "\n" not in info.message
    assert "/" not in info.message
    assert len(info.message) < 200
    return caught.value


def decoded_or_refused(harness: MediaHarness, data: bytes) -> npt.NDArray[np.float32] | None:
    status = 400
    samples = None
    try:
        samples = harness.decode(data, param="file")
    except OmniError as error:
        status = error.info.status
    assert status == 400
    harness.assert_empty()
    return samples


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_of_any_rate_becomes_the_same_tone_at_16_khz(rate: int, channels: int) -> None:
    harness = MediaHarness()
    samples = harness.decode(wav(tone(0.5, rate, channels=channels), rate, channels))
    assert samples.dtype == np.float32
    assert len(samples) == pytest.approx(CLIP_RATE / 2, abs=1)
    wanted = np.sin(2 * np.pi * 440 * np.arange(len(samples)) / CLIP_RATE) / 2
    inner = slice(400, -400)  # A resampler rings at a hard edge.
    assert snr_db(wanted[inner], samples[inner]) > 60
    harness.assert_empty()


@pytest.mark.parametrize(
    ("format", "codec"),
    [
        ("wav", "pcm_s16le"),
        ("wav", "pcm_s24le"),
        ("wav", "pcm_f32le"),
        ("wav", "pcm_f64le"),
        ("wav", "pcm_s64le"),
        ("wav", "pcm_u8"),
        ("wav", "pcm_mulaw"),
        ("aiff", "pcm_s16be"),
        ("caf", "pcm_s16le"),
        ("au", "pcm_s16be"),
        ("flac", "flac"),
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("webm", "libopus"),
        ("matroska", "flac"),
        ("ipod", "aac"),
        ("mp4", "aac"),
        ("adts", "aac"),
        ("mpegts", "aac"),
    ],
)
def test_every_container_that_clients_send_is_read(format: str, codec: str) -> None:
    harness = MediaHarness()
    samples = harness.decode(container(format, codec, tone(1.0, 48_000)))
    assert len(samples) / CLIP_RATE == pytest.approx(1.0, abs=0.05)
    assert loudness(samples) == pytest.approx(0.5 / 2**0.5, rel=0.05)


@pytest.mark.parametrize(
    "content_type", [None, "", "audio/webm", "audio/webm;codecs=opus", "audio/x-m4a", "text/plain"]
)
@pytest.mark.parametrize("filename", [None, "blob", "speech.wav"])
def test_the_bytes_decide_not_the_declared_type(content_type: str | None, filename: str | None) -> None:
    """A browser's recorder writes WebM that nothing can seek in, with no duration, under any name."""
    recorded = container("webm", "libopus", tone(1.0, 48_000), seekable=False, live="1")
    samples = MediaHarness().decode(recorded, content_type=content_type, filename=filename)
    assert len(samples) / CLIP_RATE == pytest.approx(1.0, abs=0.03)


def test_fragmented_mp4_is_read() -> None:
    recorded = container("mp4", "aac", tone(1.0, 48_000), seekable=False, movflags="frag_keyframe+empty_moov")
    assert len(MediaHarness().decode(recorded)) / CLIP_RATE == pytest.approx(1.0, abs=0.05)


def test_a_streamed_wav_that_was_saved_is_read_to_its_end() -> None:
    pcm = tone(0.5)
    streamed = bytearray(wav(pcm))
    struct.pack_into("<I", streamed, 4, 0xFFFFFFFF)
    struct.pack_into("<I", streamed, 40, 0xFFFFFFFF)
    harness = MediaHarness(max_seconds=1.0)
    assert len(harness.decode(bytes(streamed))) == CLIP_RATE // 2


def test_raw_pcm_is_taken_at_its_word_unless_it_is_a_file() -> None:
    pcm = tone(0.5, 16_000)
    plain = np.frombuffer(pcm, "<i2") / np.float32(32768)
    harness = MediaHarness()
    assert np.array_equal(harness.decode(pcm, content_type="audio/pcm;rate=16000"), plain)
    assert np.array_equal(harness.decode(pcm, content_type="audio/pcm; rate=16000; channels=1"), plain)
    big_endian = np.frombuffer(pcm, "<i2").astype(">i2").tobytes()
    assert np.array_equal(harness.decode(big_endian, content_type="audio/L16;rate=16000"), plain)
    assert np.array_equal(harness.decode(wav(pcm, 16_000), content_type="audio/pcm"), plain)
    assert len(harness.decode(tone(1.0, 24_000), filename="x.pcm")) == CLIP_RATE
    refused(harness, pcm[:-1], content_type="audio/pcm")
    refused(harness, pcm, content_type="audio/pcm;rate=fast")
    refused(harness, pcm, content_type="audio/pcm;rate=1")
    refused(harness, pcm, content_type="audio/pcm;channels=0")


def test_one_sample_is_a_clip() -> None:
    assert len(MediaHarness().decode(wav(b"\x00\x40", 16_000))) == 1
    assert len(MediaHarness().decode(wav(b"\x00\x40", 24_000))) == 1


def patched(offset: int, format: str, value: int) -> bytes:
    data = bytearray(wav(tone(0.1)))
    struct.pack_into(format, data, offset, value)
    return bytes(data)


MALFORMED = {
    "empty": b"",
    "no samples": wav(b""),
    "text": b"What is the capital of France?\n" * 50,
    "json": b'{"error": "not a sound"}',
    "html": b"<!doctype html><html><body>404</body></html>",
    "zeros": bytes(100_000),
    "noise": np.random.default_rng(5).bytes(100_000),
    "header cut short": wav(tone(0.1))[:30],
    "header only": wav(tone(0.1))[:44],
    "no rate": patched(24, "<I", 0),
    "one sample a second": patched(24, "<I", 1),
    "four billion samples a second": patched(24, "<I", 0xFFFFFFFF),
    "no channels": patched(22, "<H", 0),
    "sixty thousand channels": patched(22, "<H", 60_000),
    "nine channels": patched(22, "<H", 9),
    "unknown codec": patched(20, "<H", 0x7777),
    "playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    "concatenation": b"ffconcat version 1.0\nfile /etc/hostname\n",
    "session description": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
    "video without sound": silent_video(5),
    "video without anything": silent_video(0),
    "webm header only": container("webm", "libopus", tone(0.5, 48_000), seekable=False, live="1")[:250],
    "wrong first bytes": b"\x00\x01\x02\x03" + container("webm", "libopus", tone(0.5, 48_000))[4:],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_sound_is_a_400_with_a_reason(name: str) -> None:
    harness = MediaHarness()
    refused(harness, MALFORMED[name])
    refused(harness, MALFORMED[name], content_type="audio/wav", filename="../../etc/passwd")


@pytest.mark.parametrize(
    ("format", "codec"),
    [("wav", "pcm_s16le"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("webm", "libopus"), ("flac", "flac")],
)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_file_cut_short_is_what_there_is_of_it_or_a_400(format: str, codec: str, part: float) -> None:
    whole = container(format, codec, tone(1.0, 48_000))
    harness = MediaHarness()
    samples = decoded_or_refused(harness, whole[: int(len(whole) * part)])
    assert samples is None or 0 < len(samples) <= CLIP_RATE * 1.05


@pytest.mark.parametrize(
    ("format", "codec"), [("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac"), ("mp4", "aac")]
)
def test_damage_in_the_middle_is_survived(format: str, codec: str) -> None:
    data = bytearray(container(format, codec, tone(2.0, 48_000)))
    rng = np.random.default_rng(11)
    for at in rng.integers(len(data) // 4, len(data), 40):
        data[at] ^= 0xFF
    harness = MediaHarness()
    samples = decoded_or_refused(harness, bytes(data))
    assert samples is None or (np.isfinite(samples).all() and np.abs(samples).max() <= 1.0)


def test_more_sound_than_is_allowed_is_refused_from_the_header_alone() -> None:
    harness = MediaHarness(max_seconds=2.0)
    error = refused(harness, wav(tone(5.0)))
    assert error.info.code == "audio_too_long"
    assert harness.engine.counters()["decoded_s"] == 0


@pytest.mark.parametrize(("format", "codec"), [("adts", "aac"), ("mp3", "libmp3lame"), ("webm", "libopus")])
def test_more_sound_than_is_allowed_is_refused_without_a_header_too(format: str, codec: str) -> None:
    data = container(format, codec, tone(5.0, 48_000), seekable=False)
    assert refused(MediaHarness(max_seconds=2.0), data).info.code == "audio_too_long"
    assert refused(MediaHarness(), data, max_seconds=2.0).info.code == "audio_too_long"
    MediaHarness(max_seconds=6.0).decode(data)


def test_a_header_that_lies_about_the_length_costs_nothing() -> None:
    """STREAMINFO claims 2^36 - 1 samples: refused by its word, without decoding or allocating."""
    data = bytearray(container("flac", "flac", tone(0.2, 48_000)))
    data[21] |= 0x0F
    data[22:26] = b"\xff\xff\xff\xff"
    assert refused(MediaHarness(), bytes(data)).info.code == "audio_too_long"


WIDE = flac(np.zeros((8, 50_000), np.float32), 192_000)
"""A quarter of a second, but 400,000 samples in one kilobyte: all channels are decoded to hear one."""


def test_the_work_is_bounded_by_channels_and_rate_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(WIDE) < 20_000
    assert len(MediaHarness(max_samples=400_000).decode(WIDE)) == pytest.approx(50_000 / 12, abs=2)
    decoded: list[object] = []

    def frames(*args: object) -> Iterator[None]:
        decoded.append(args)
        yield None

    monkeypatch.setattr("omni_actors.media.worker.audio.frames_of", frames)
    error = refused(MediaHarness(max_samples=399_999), WIDE)
    assert error.info.code == "audio_too_long"
    assert "399,999 samples" in error.info.message
    assert decoded == []


def test_a_header_that_says_nothing_of_the_length_is_no_way_around_that() -> None:
    data = bytearray(WIDE)
    data[21] &= 0xF0
    data[22:26] = bytes(4)  # "unknown"
    assert refused(MediaHarness(max_samples=399_999), bytes(data)).info.code == "audio_too_long"
    MediaHarness(max_samples=400_000).decode(bytes(data))


def test_samples_that_are_no_numbers_become_silence() -> None:
    values = np.array([0.0, np.nan, np.inf, -np.inf, 0.5, 3.0] * 4_000, "<f4")
    header = bytearray(wav(values.tobytes(), 16_000))
    struct.pack_into("<HHIIHH", header, 20, 3, 1, 16_000, 64_000, 4, 32)
    samples = MediaHarness().decode(bytes(header))
    assert len(samples) == len(values)
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 1.0


def test_a_bass_channel_is_left_out_and_the_rest_is_averaged() -> None:
    """5.1 in the WAV order: front left and right, centre, bass, two at the sides."""
    frames = np.zeros((1_600, 6), "<i2")
    frames[:, 2] = 10_000
    frames[:, 3] = 30_000
    pcm = frames.tobytes()
    guid = bytes.fromhex("0100000000001000800000aa00389b71")
    fmt = struct.pack("<HHIIHHHHI", 0xFFFE, 6, 16_000, 192_000, 12, 16, 22, 16, 0x60F) + guid
    body = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(pcm)) + pcm
    samples = MediaHarness().decode(b"RIFF" + struct.pack("<I", len(body)) + body)
    assert samples == pytest.approx(np.full(1_600, 10_000 / 5 / 32_768), abs=1e-6)


def test_files_damaged_anywhere_are_decoded_or_refused() -> None:
    """What libav and its binding make of broken headers is not always an error of theirs: it must be one of ours."""
    seeds = [
        container(format, codec, tone(0.1, 48_000))
        for format, codec in (
            ("wav", "pcm_s16le"),
            ("aiff", "pcm_s16be"),
            ("flac", "flac"),
            ("mp3", "libmp3lame"),
            ("ogg", "libopus"),
            ("webm", "libopus"),
            ("ipod", "aac"),
            ("adts", "aac"),
            ("mpegts", "aac"),
        )
    ]
    seeds.append(silent_video(2))
    rng = np.random.default_rng(7)
    harness = MediaHarness(max_seconds=30.0)
    for number in range(600):
        data = bytearray(seeds[number % len(seeds)])
        for _ in range(int(rng.choice([1, 3, 10, 50]))):
            reach = min(len(data), int(rng.choice([64, 512, 1 << 20])))
            at = int(rng.integers(reach))
            match rng.integers(4):
                case 0:
                    data[at] = rng.integers(256)
                case 1:
                    data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
                case 2:
                    del data[at : at + int(rng.integers(1, 100))]
                case _:
                    data[at:at] = bytes(int(rng.integers(1, 20)))
            data = data or bytearray(1)
        decoded_or_refused(harness, bytes(data))
