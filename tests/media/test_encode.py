"""Encoding: the six formats, streamed and whole, are what they say they are and lose no sound."""

from __future__ import annotations

import io
import wave
from itertools import pairwise
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.media.harness import MediaHarness, snr_db, strict_wav, tone

from omni_actors.media import questions as q
from omni_actors.media.limits import FORMATS, PIECE
from omni_actors.media.worker.encode import CODECS, nearest_rate
from omni_actors.protocol.errors import OmniError

HARNESS = MediaHarness()

MAGIC = {
    "mp3": (b"\xff\xf3", b"\xff\xfb", b"ID3"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1",),
    "flac": (b"fLaC",),
    "wav": (b"RIFF",),
}

LATE = {"mp3": 3 * 576 / 24_000, "opus": 0.0, "aac": 2 * 1024 / 24_000, "flac": 0.0, "wav": 0.0, "pcm": 0.0}
"""Seconds that a decoder may give beyond what was encoded at 24 kHz, when it is streamed."""


def encode(
    format: str,
    pieces: list[bytes],
    *,
    rate: int = 24_000,
    channels: int = 1,
    streaming: bool = True,
    harness: MediaHarness = HARNESS,
) -> list[bytes]:
    """What came of each piece, and of the end."""
    stream = harness.ask(
        q.EncodeOpen(owner="o", format=format, sample_rate=rate, channels=channels, streaming=streaming)
    )
    out = []
    for question in [*(q.EncodeFeed(stream=stream, data=piece) for piece in pieces), q.EncodeFinish(stream=stream)]:
        answer = q.parse(harness.ask(question), q.Encoded)
        data = answer.data
        while answer.more:
            assert len(answer.data) == PIECE
            answer = q.parse(harness.ask(q.EncodeRead(stream=stream)), q.Encoded)
            data += answer.data
        out.append(data)
    harness.assert_empty()
    return out


def decode(format: str, data: bytes, rate: int = 24_000, channels: int = 1) -> npt.NDArray[Any]:
    """By libav, at the file's own rate, shape [samples, channels]; strictly for WAV."""
    if format == "wav":
        wav_rate, wav_channels, samples, _ = strict_wav(data)
        assert (wav_rate, wav_channels) == (rate, channels)
        data, format = samples, "pcm"
    if format == "pcm":
        return np.frombuffer(data, "<i2").reshape(-1, channels) / np.float32(32768)
    with av.open(io.BytesIO(data)) as file:
        assert file.format.name == CODECS[format].container.replace("adts", "aac")
        frames = list(file.decode(audio=0))
        assert {frame.sample_rate for frame in frames} == {48_000 if format == "opus" else rate}
        assert {frame.layout.nb_channels for frame in frames} == {channels}
        resampler = av.AudioResampler(format="flt", layout=frames[0].layout, rate=frames[0].sample_rate)
        arrays = [out.to_ndarray() for frame in [*frames, None] for out in resampler.resample(frame)]
    return np.concatenate(arrays, axis=1).reshape(-1, channels)


def chirp(seconds: float, rate: int = 24_000) -> bytes:
    """A tone that rises, so that a shift in time would be seen."""
    t = np.arange(round(seconds * rate)) / rate
    return (np.sin(2 * np.pi * (200 + 300 * t) * t) * 12_000).astype("<i2").tobytes()


def best_snr(wanted: npt.NDArray[Any], got: npt.NDArray[Any], most: int) -> tuple[int, float]:
    """The delay of up to ``most`` samples at which ``got`` fits best, and how well it fits."""
    delays = range(min(most, len(got) - len(wanted)) + 1)
    return max(((delay, snr_db(wanted, got[delay : delay + len(wanted)])) for delay in delays), key=lambda fit: fit[1])


@pytest.mark.parametrize("format", FORMATS)
def test_this_build_has_every_encoder(format: str) -> None:
    assert format in HARNESS.info["formats"]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("format", FORMATS)
def test_what_is_encoded_is_heard_again(format: str, channels: int, streaming: bool) -> None:
    seconds = 1.003  # No multiple of any codec's frame.
    pcm = tone(seconds, channels=channels)
    data = b"".join(encode(format, [pcm], channels=channels, streaming=streaming))
    if format != "pcm":
        assert data.startswith(MAGIC[format])
    samples = decode(format, data, channels=channels)
    rate = 48_000 if format == "opus" else 24_000
    late = 0.0 if format == "mp3" and not streaming else LATE[format]
    assert seconds - 1 / rate <= len(samples) / rate <= seconds + late + 1 / rate
    energy = np.sum(np.square(samples[:, 0])) / rate
    # LAME makes room for its own errors: at this bit rate everything is 0.95 as loud.
    gain = 0.95 if format == "mp3" else 1.0
    assert energy == pytest.approx(seconds * (0.5 * gain) ** 2 / 2, rel=0.03)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("format", ["flac", "wav", "pcm"])
def test_lossless_formats_give_the_very_samples(format: str, streaming: bool) -> None:
    pcm = np.random.default_rng(3).integers(-32768, 32768, 30_001, dtype="<i2").tobytes()
    data = b"".join(encode(format, [pcm], streaming=streaming))
    assert np.array_equal(decode(format, data)[:, 0] * 32_768, np.frombuffer(pcm, "<i2"))


@pytest.mark.parametrize(("format", "db"), [("mp3", 20), ("aac", 20), ("opus", 8)])
def test_lossy_formats_keep_the_waveform_and_its_place(format: str, db: float) -> None:
    pcm = chirp(1.0)
    wanted = np.frombuffer(pcm, "<i2") / np.float32(32768)
    got = decode(format, b"".join(encode(format, [pcm], streaming=False)))[:, 0]
    if format == "opus":
        got = got[::2]
    delay, snr = best_snr(wanted[1_000:20_000], got[1_000:], 3_000)
    assert snr > db
    assert delay <= (2048 if format == "aac" else 2)


def test_a_whole_wav_has_exact_sizes_and_a_streamed_one_one_header_with_the_placeholder() -> None:
    sentences = [tone(0.1), tone(0.2), tone(0.05)]
    pcm = b"".join(sentences)
    _, _, samples, declared = strict_wav(b"".join(encode("wav", sentences, streaming=False)))
    assert samples == pcm
    assert declared == len(pcm)
    pieces = encode("wav", sentences)
    rate, channels, samples, declared = strict_wav(b"".join(pieces))
    assert (rate, channels, samples, declared) == (24_000, 1, pcm, 0xFFFFFFFF)
    assert len(pieces[0]) == 44 + len(sentences[0])
    assert pieces[1:] == [*sentences[1:], b""]
    assert b"".join(encode("pcm", sentences)) == pcm


def test_pythons_own_reader_reads_both_wavs() -> None:
    for streaming in (True, False):
        with wave.open(io.BytesIO(b"".join(encode("wav", [tone(0.1)], streaming=streaming)))) as file:
            assert file.getparams()[:3] == (1, 2, 24_000)
            assert file.readframes(10_000) == tone(0.1)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("format", ["wav", "pcm"])
def test_no_piece_ends_inside_a_frame(format: str, channels: int) -> None:
    pcm = tone(0.05, channels=channels)
    odd = [pcm[at : at + 77] for at in range(0, len(pcm), 77)]
    for streaming in (True, False):
        pieces = encode(format, odd, channels=channels, streaming=streaming)
        assert all((len(piece) - (44 if piece[:4] == b"RIFF" else 0)) % (2 * channels) == 0 for piece in pieces)
        assert b"".join(pieces).endswith(pcm)


@pytest.mark.parametrize("format", FORMATS)
def test_half_a_sample_at_the_end_is_dropped(format: str) -> None:
    pcm = chirp(0.1)
    for streaming in (True, False):
        whole = encode(format, [pcm], streaming=streaming)
        assert b"".join(encode(format, [pcm + b"\x01"], streaming=streaming)) == b"".join(whole)


@pytest.mark.parametrize("format", FORMATS)
@given(cuts=st.lists(st.integers(0, 24_000), max_size=12), streaming=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_bytes_do_not_depend_on_how_the_sound_was_cut(format: str, cuts: list[int], streaming: bool) -> None:
    pcm = chirp(0.5)
    edges = sorted({0, len(pcm), *(min(cut, len(pcm)) for cut in cuts)})
    pieces = [pcm[a:b] for a, b in pairwise(edges)]
    assert b"".join(encode(format, pieces, streaming=streaming)) == b"".join(encode(format, [pcm], streaming=streaming))


@pytest.mark.parametrize("format", FORMATS)
def test_no_sound_at_all_is_a_file_that_players_open(format: str) -> None:
    for streaming in (True, False):
        data = b"".join(encode(format, [], streaming=streaming))
        assert len(decode(format, data)) / 24_000 < 0.15


@pytest.mark.parametrize(("format", "most"), [("mp3", 0.15), ("opus", 0.1), ("aac", 0.15), ("flac", 0.3)])
def test_a_stream_gives_bytes_soon_and_never_falls_behind(format: str, most: float) -> None:
    """Everything but the last ``most`` seconds can be decoded while the stream is still open."""
    twenty_ms = [chirp(2.0)[at : at + 960] for at in range(0, 96_000, 960)]
    pieces = encode(format, twenty_ms)
    for fed in (25, 50, 100):
        heard = decode(format, b"".join(pieces[:fed]))
        assert len(heard) / (48_000 if format == "opus" else 24_000) >= fed * 0.02 - most


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac"])
def test_any_rate_keeps_its_pitch_and_length(format: str, rate: int) -> None:
    data = b"".join(encode(format, [tone(1.0, rate)], rate=rate, streaming=False))
    samples = MediaHarness().decode(data)
    assert len(samples) / 16_000 == pytest.approx(1.0, abs=0.01 if format in ("flac", "opus", "mp3") else 0.27)
    spectrum = np.abs(np.fft.rfft(samples[2_000:14_000]))
    assert np.argmax(spectrum) * 16_000 / 12_000 == pytest.approx(440, abs=2)
    assert nearest_rate(CODECS[format].encoder, rate) >= min(rate, 48_000)


@pytest.mark.parametrize("format", ["mpeg", "MP3", "", "ogg", "wav\n" + "x" * 1_000])
def test_an_unknown_format_is_refused_with_the_list(format: str) -> None:
    with pytest.raises(OmniError) as caught:
        encode(format, [])
    info = caught.value.info
    assert (info.status, info.param) == (400, "response_format")
    assert "mp3, opus, aac, flac, wav, pcm" in info.message
    assert len(info.message) < 200
    HARNESS.assert_empty()


@pytest.mark.parametrize(("rate", "channels"), [(0, 1), (-1, 1), (24_000, 0), (24_000, 3), (10**9, 1), (4_000, 1)])
def test_an_impossible_shape_is_refused(rate: int, channels: int) -> None:
    with pytest.raises(OmniError) as caught:
        encode("mp3", [], rate=rate, channels=channels)
    assert caught.value.info.status == 400
    HARNESS.assert_empty()


def test_a_build_without_an_encoder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS, "mp3", CODECS["mp3"].__class__("mp3", "no_such_encoder"))
    harness = MediaHarness()
    assert set(harness.info["formats"]) == set(FORMATS) - {"mp3"}
    with pytest.raises(OmniError) as caught:
        encode("mp3", [], harness=harness)
    assert (caught.value.info.status, caught.value.info.code) == (400, "encoder_unavailable")
    assert encode("flac", [tone(0.1)], harness=harness)


def test_a_large_file_comes_in_pieces() -> None:
    noise = np.random.default_rng(1).integers(-32768, 32768, PIECE // 2, dtype="<i2").tobytes()
    data = encode("flac", [noise, noise, noise], streaming=False)
    assert not any(data[:-1])
    assert len(data[-1]) > 2 * PIECE


def test_a_stream_is_bounded_in_seconds() -> None:
    harness = MediaHarness(max_seconds=1.0)
    with pytest.raises(OmniError):
        encode("mp3", [tone(0.6), tone(0.6)], harness=harness)
    harness.assert_empty()
