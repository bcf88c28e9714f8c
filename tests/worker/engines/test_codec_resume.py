"""A codec goes on behind the samples that the client has, whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.engines.codec_driver import (
    PORT,
    Convolutions,
    LooksAhead,
    Remembers,
    Sound,
    check_every_delivery,
    codec_engine,
    open_stream,
    payload,
    run_all,
)

from omni_actors.worker.engines.oneshot.codec import CodecAdapter

CODECS: tuple[type[CodecAdapter], ...] = (Convolutions, LooksAhead, Remembers)

RATE = Convolutions.samples_per_frame


def codes(frames: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(3).integers(0, 16, (frames, 2))


@pytest.mark.parametrize("ramp", [False, True])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("context", [0, 5])
def test_from_every_sample_on(codec: type[CodecAdapter], ramp: bool, context: int) -> None:
    engine = codec_engine(codec, {"chunk_frames": 6, "ramp": ramp})
    frames = codes(24)
    counts = range(RATE * (len(frames) - context) - 9)
    starts = check_every_delivery(
        engine, frames, counts, context=context, tolerance=1e-6, slack=2 * RATE + (codec.unsettled or 0)
    )
    assert starts[-1] > RATE * 12


def test_what_was_heard_is_not_decoded() -> None:
    """Of a long stream, the frames that the rest depends on, and no more."""
    engine = codec_engine(Convolutions, {"chunk_frames": 8, "ramp": False})
    adapter: Any = engine._adapter
    decoded: list[int] = []
    decode = adapter.decode

    def counted(codes: torch.Tensor) -> torch.Tensor:
        decoded.append(codes.shape[1])
        made: torch.Tensor = decode(codes)
        return made

    adapter.decode = counted
    open_stream(engine, 1, delivered=RATE * 200)
    engine.feed(1, PORT, payload(codes(210)), True)
    run_all(engine, Sound())
    assert sum(decoded) < 40


def test_no_sound_before_the_frames_are_there_that_the_client_has_heard() -> None:
    engine, out = codec_engine(Remembers, {"chunk_frames": 2, "ramp": False}), Sound()
    open_stream(engine, 1, delivered=RATE * 8)
    for frame in codes(8):
        engine.feed(1, PORT, payload(frame[None]), False)
        run_all(engine, out)
    assert not out.pieces[1]
    # Fewer than it has heard already: what there is, and the end.
    engine.feed(1, PORT, None, True)
    run_all(engine, out)
    assert out.usage[1].audio_output_s > 0
    assert not torch.is_inference_mode_enabled()
