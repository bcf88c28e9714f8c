"""Windows of codec frames: whatever the cutting and the company, a stream's samples are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.engines.codec_driver import (
    PORT,
    Convolutions,
    LooksAhead,
    Remembers,
    Sound,
    codec_engine,
    decode_in_pieces,
    open_stream,
    payload,
    run_all,
)

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Speech
from omni_actors.worker.checks import InputError
from omni_actors.worker.engines.oneshot import GenerationEngine
from omni_actors.worker.engines.oneshot.codec import CodecAdapter

CODECS: tuple[type[CodecAdapter], ...] = (Convolutions, LooksAhead, Remembers)


def codes(frames: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(0, 16, (frames, 2))


def adapter(engine: GenerationEngine) -> Any:
    return engine._adapter


@torch.inference_mode()
def whole(engine: GenerationEngine, stream: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if len(stream) * 6 <= adapter(engine)._missing:  # the decoder itself cannot say this
        return np.empty(0, np.float32)
    decoded: np.ndarray[Any, Any] = adapter(engine).decode(torch.from_numpy(stream)[None])[0].numpy()
    return decoded


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cutting_gives_the_samples_of_the_whole(codec: type[CodecAdapter], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=5))
    most = data.draw(st.integers(1, 50))
    context = data.draw(st.none() | st.integers(codec.sufficient_context, 20))
    options = {
        "first_chunk_frames": data.draw(st.integers(1, 50)),
        "min_chunk_frames": data.draw(st.integers(1, 50)),
        "chunk_frames": most,
        "left_context_frames": context,
        "ramp": data.draw(st.booleans()),
    }
    engine = codec_engine(codec, options, max_batch=data.draw(st.integers(1, 4)))
    streams = [codes(length, seed) for seed, length in enumerate(lengths)]
    random = data.draw(st.randoms(use_true_random=False))
    out = decode_in_pieces(engine, streams, lambda key, turn: random.randint(1, 12), lambda turn: random.random() < 0.7)
    for key, stream in enumerate(streams):
        expected = whole(engine, stream)
        got = out.of(key)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        assert out.usage[key].audio_output_s == pytest.approx(len(expected) / codec.sample_rate)
    assert engine.counters()["requests"] == 0


@pytest.mark.parametrize("codec", CODECS)
def test_less_context_than_sufficient_changes_samples(codec: type[CodecAdapter]) -> None:
    """The declaration is tight: a test that passes with any context would show nothing."""
    engine = codec_engine(
        codec, {"chunk_frames": 3, "left_context_frames": codec.sufficient_context - 1, "ramp": False}
    )
    stream = codes(40)
    got = decode_in_pieces(engine, [stream], lambda key, turn: 1).of(0)
    assert np.abs(got - whole(engine, stream)).max() > 1e-4


def test_requests_share_batches_and_long_queues_make_long_pieces() -> None:
    engine = codec_engine(Convolutions, {"first_chunk_frames": 2, "chunk_frames": 16})
    out = Sound()
    for key in range(6):
        open_stream(engine, key)
    for turn in range(40):  # nothing runs meanwhile
        for key in range(6):
            engine.feed(key, PORT, payload(codes(40, key)[turn : turn + 1]), turn == 39)
    adapter(engine).batches.clear()
    run_all(engine, out)
    # 2, 4, 8, 16 and the last 10 frames, each of all six at once.
    assert adapter(engine).batches == [6] * 5
    for key in range(6):
        np.testing.assert_allclose(out.of(key), whole(engine, codes(40, key)), rtol=0, atol=1e-6)


def test_a_payload_that_fills_no_piece_costs_the_talker_nothing() -> None:
    engine = codec_engine(Convolutions, {"chunk_frames": 4, "ramp": False})
    open_stream(engine, 1)
    consumed = [engine.feed(1, PORT, payload(codes(1)), False) for _ in range(9)]
    # The fourth makes a piece and waits for its start; the others are taken at once.
    assert consumed == [True] * 3 + [False] + [True] * 5
    out = Sound()
    run_all(engine, out)
    assert out.consumed_payloads[1] == 1
    assert len(out.pieces[1]) == 2


def test_a_request_may_ask_for_its_first_piece() -> None:
    engine = codec_engine(Convolutions, {"first_chunk_frames": 8, "chunk_frames": 8})
    open_stream(engine, 1, {"speech": Speech(initial_chunk_frames=3)})
    open_stream(engine, 2, {"speech": Speech()})
    out = Sound()
    for _ in range(3):
        for key in (1, 2):
            engine.feed(key, PORT, payload(codes(1)), False)
    run_all(engine, out)
    assert len(out.pieces[1]) == 1
    assert not out.pieces[2]


def test_no_frames_make_no_sound() -> None:
    engine = codec_engine(Convolutions)
    open_stream(engine, 1)
    engine.feed(1, PORT, None, True)
    out = Sound()
    run_all(engine, out)
    assert not out.pieces[1]
    assert out.usage[1].audio_output_s == 0


@pytest.mark.parametrize(
    "bad", [np.full((1, 2), 16), np.full((1, 2), -1), np.zeros((1, 3), np.int64), np.zeros((1, 2), np.int32)]
)
def test_codes_that_are_none_fail_their_request_alone(bad: np.ndarray[Any, Any]) -> None:
    engine = codec_engine(Convolutions)
    open_stream(engine, 1)
    open_stream(engine, 2)
    with pytest.raises(InputError, match="tensor 'codes' of payload 'codes'"):
        engine.feed(1, PORT, payload(bad), False)
    engine.feed(2, PORT, payload(codes(9)), True)
    out = Sound()
    run_all(engine, out)
    np.testing.assert_allclose(out.of(2), whole(engine, codes(9)), rtol=0, atol=1e-6)


def _break(codes: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    return torch.where((codes == 15).any(dim=(1, 2), keepdim=False)[:, None], torch.nan, samples)


class BreaksOnFifteen(Convolutions):
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return _break(codes, super().decode(codes))


class RemembersUntilFifteen(Remembers):
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return _break(codes, super().decode(codes))


@pytest.mark.parametrize("codec", [BreaksOnFifteen, RemembersUntilFifteen])
def test_a_stream_that_is_not_finite_fails_alone_and_no_sample_of_another_is_lost_or_doubled(
    codec: type[CodecAdapter],
) -> None:
    engine = codec_engine(codec, {"first_chunk_frames": 4})
    good = codes(30) % 15
    poison = good.copy()
    poison[20] = 15
    out = decode_in_pieces(engine, [good, poison, good[:25]], lambda key, turn: 5)
    assert set(out.errors) == {1}
    np.testing.assert_allclose(out.of(0), whole(engine, good), rtol=0, atol=1e-6)
    np.testing.assert_allclose(out.of(2), whole(engine, good[:25]), rtol=0, atol=1e-6)


class Irregular(Convolutions):
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return super().decode(codes)[:, : 2 * codes.shape[1]]


def test_a_decoder_that_is_not_what_it_declares_does_not_load() -> None:
    with pytest.raises(OmniError, match="6 samples of each frame"):
        codec_engine(Irregular)


class Talkative(Remembers):
    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        samples, then = super().decode_next(codes, begins, memories, fresh)
        return samples[:, 1:], then


def test_a_memory_that_gives_other_samples_than_declared_fails_its_request() -> None:
    engine = codec_engine(Talkative)
    out = decode_in_pieces(engine, [codes(30)], lambda key, turn: 5)
    assert out.errors[0].status == 500


@pytest.mark.parametrize("codec", [Convolutions, Remembers])
def test_what_no_piece_reads_any_more_is_forgotten(codec: type[CodecAdapter]) -> None:
    engine = codec_engine(codec, {"chunk_frames": 8, "ramp": False})
    out = Sound()
    open_stream(engine, 1)
    for _ in range(200):
        engine.feed(1, PORT, payload(codes(4)), False)
        run_all(engine, out)
    held = len(next(iter(engine._requests.values())).state.codes)
    assert held <= (0 if codec is Remembers else 8 + codec.sufficient_context + 2)
