"""The vocoder's sound is transformers', however its codes come and whoever shares its batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.qwen2_5_omni.whole import beginning_with_noise
from tests.worker.engines.codec_driver import (
    PORT,
    Sound,
    check_every_delivery,
    decode_in_pieces,
    open_stream,
    payload,
    run_all,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniSnakeBeta,
)

from omni_actors.models.qwen2_5_omni.bigvgan import Activation, BigVGAN
from omni_actors.models.qwen2_5_omni.flow import Flow, Window
from omni_actors.models.qwen2_5_omni.pipeline import TOKEN2WAV
from omni_actors.models.qwen2_5_omni.speakers import read_speakers
from omni_actors.models.qwen2_5_omni.token2wav import group_end
from omni_actors.models.tiny import reference
from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.params import Speech
from omni_actors.worker.engines.oneshot import GenerationEngine

LENGTHS = (61, 36, 5, 1)
STEPS = 3
TOLERANCE = 5e-5
"""Of spectrograms and samples. Windows are other shapes than the whole, and float32 rounds them otherwise."""

Samples = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen2.5-omni")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """transformers' own vocoder."""
    whole: Any = reference.model(folder)
    return whole.token2wav


@pytest.fixture(scope="module")
def streams() -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 128, (codes, 1)) for codes in LENGTHS]


@pytest.fixture(scope="module")
def flow(model: Any) -> Flow:
    with torch.inference_mode():
        return Flow(model.code2wav_dit_model, STEPS, 0.5, -1.0)


@pytest.fixture(scope="module")
def speaker(folder: Path) -> Any:
    return next(iter(read_speakers(folder).values()))


@pytest.fixture(scope="module")
def spectrograms(model: Any, streams: Sequence[Any], speaker: Any) -> list[torch.Tensor]:
    """transformers', [frames, mels] of each stream, from our noise."""
    found = []
    for codes in streams:
        with beginning_with_noise(model, len(codes), 0), torch.inference_mode():
            mel = model.code2wav_dit_model.sample(
                speaker.cond, speaker.ref_mel, torch.from_numpy(codes).T, num_steps=STEPS
            )
        found.append(mel[0].t())
    return found


@pytest.fixture(scope="module")
def whole(model: Any, spectrograms: Sequence[torch.Tensor]) -> list[Samples]:
    with torch.inference_mode():
        return [model.code2wav_bigvgan_model(mel.t()[None]).reshape(-1).numpy() for mel in spectrograms]


def vocoder(folder: Path, **options: Any) -> GenerationEngine:
    given = {"steps": STEPS} | options
    name = TOKEN2WAV.adapter
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="token2wav",
        replica=0,
        incarnation=0,
        engine="",
        adapter=name,
        model=str(folder),
        options=given,
    )
    engine = GenerationEngine(hello)
    engine.load(lambda text, fraction: None)
    return engine


def window(flow: Flow, codes: Any, block: int, end: int, condition: Any, past: torch.Tensor | None) -> Window:
    """Of blocks ``block … end - 1`` and everything behind them."""
    size = flow.block_codes
    blocks = range(block, -(-len(codes) // size))
    noise = torch.cat([flow.noise(0, b) for b in blocks])[: (len(codes) - block * size) * flow.repeats]
    last = min(len(codes), end * size) - block * size
    return Window(torch.from_numpy(codes[block * size :, 0]), noise, block, 0, last, condition, past)


@torch.inference_mode()
def test_spectrograms_that_are_solved_together_are_transformers(
    flow: Flow, streams: Sequence[Any], speaker: Any, spectrograms: Sequence[torch.Tensor]
) -> None:
    condition = flow.condition(speaker)
    solved = flow.solve([window(flow, codes, 0, len(codes), condition, None) for codes in streams])
    for found, expected in zip(solved, spectrograms, strict=True):
        torch.testing.assert_close(found.mel, expected, atol=TOLERANCE, rtol=0)


@settings(deadline=None, max_examples=8)
@given(groups=st.lists(st.integers(1, 4), min_size=6, max_size=6), beside=st.integers(1, 3))
def test_groups_that_go_on_from_one_another_are_the_whole(
    flow: Flow,
    streams: Sequence[Any],
    speaker: Any,
    spectrograms: Sequence[torch.Tensor],
    groups: list[int],
    beside: int,
) -> None:
    """With enough ahead, for any groups and whoever is solved beside them."""
    codes, other = streams[0], streams[beside]
    condition, past, block, parts = flow.condition(speaker), None, 0, []
    stranger = window(flow, other, 0, len(other), condition, None)
    with torch.inference_mode():
        for count in groups:
            if block * flow.block_codes >= len(codes):
                break
            _, solved = flow.solve([stranger, window(flow, codes, block, block + count, condition, past)])
            parts.append(solved.mel)
            block, past = block + count, solved.memory
    found = torch.cat(parts)
    torch.testing.assert_close(found, spectrograms[0][: len(found)], atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_a_group_that_forgets_what_came_before_is_seen(
    flow: Flow, streams: Sequence[Any], speaker: Any, spectrograms: Sequence[torch.Tensor]
) -> None:
    solved = flow.solve([window(flow, streams[0], 2, 3, flow.condition(speaker), None)])[0]
    assert (solved.mel - spectrograms[0][48:72]).abs().max() > 20 * TOLERANCE


@pytest.mark.parametrize("frames", [1, 2, 7, 61])
@torch.inference_mode()
def test_spectrograms_sound_like_transformers(model: Any, frames: int) -> None:
    bigvgan = BigVGAN(model.code2wav_bigvgan_model, KERNELS)
    mel = torch.randn(2, 80, frames, generator=torch.Generator().manual_seed(0)) - 4
    expected = model.code2wav_bigvgan_model(mel).reshape(2, -1)
    torch.testing.assert_close(bigvgan(mel, 0, frames), expected, atol=1e-6, rtol=0)
    first, last = frames // 3, frames - frames // 3
    part = expected[:, first * bigvgan.hop : last * bigvgan.hop]
    torch.testing.assert_close(bigvgan(mel, first, last), part, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3, 8, 24])
@pytest.mark.parametrize("length", [1, 4, 30, 96])
@torch.inference_mode()
def test_activations_are_transformers(channels: int, length: int) -> None:
    module = Qwen2_5OmniAntiAliasedActivation1d(activation=Qwen2_5OmniSnakeBeta(channels))
    random = torch.Generator().manual_seed(0)
    for values in (module.act.alpha, module.act.beta):
        values.copy_(torch.randn(channels, generator=random) / 2)
    x = torch.randn(2, channels, length, generator=random)
    torch.testing.assert_close(Activation.of(module, KERNELS)(x), module(x), atol=2e-6, rtol=0)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_sound_with_enough_ahead_is_transformers(
    folder: Path, streams: Sequence[Any], whole: Sequence[Samples], most: int
) -> None:
    engine = vocoder(folder, look_ahead_blocks=None, window_blocks=most)
    sound = decode_in_pieces(engine, streams, lambda stream, turn: 7 + stream)
    for key, expected in enumerate(whole):
        np.testing.assert_allclose(sound.of(key), expected, atol=TOLERANCE)


@pytest.fixture(scope="module", params=[{}, {"window_blocks": 1}, {"left_context_blocks": 2}], ids=str)
def served(request: pytest.FixtureRequest, folder: Path, streams: Sequence[Any]) -> tuple[GenerationEngine, Any]:
    """A vocoder with the makers' look ahead, and what it says when all codes come at once."""
    engine = vocoder(folder, **request.param)
    return engine, decode_in_pieces(engine, streams, lambda stream, turn: len(streams[stream]))


@settings(deadline=None, max_examples=5)
@given(data=st.data())
def test_sound_does_not_depend_on_how_codes_come(
    served: tuple[GenerationEngine, Any], streams: Sequence[Any], data: st.DataObject
) -> None:
    engine, expected = served
    cuts = data.draw(st.lists(st.integers(1, 40), min_size=4, max_size=4))
    every = data.draw(st.integers(1, 3))
    sound = decode_in_pieces(engine, streams, lambda stream, turn: cuts[(stream + turn) % 4], lambda t: t % every == 0)
    for key, codes in enumerate(streams):
        assert len(sound.of(key)) == len(codes) * 480
        np.testing.assert_allclose(sound.of(key), expected.of(key), atol=TOLERANCE)


@given(context=st.floats(0, 4), most=st.integers(1, 12), ahead=st.integers(0, 3), pace=st.floats(1, 5))
def test_groups_grow_and_leave_no_listener_without_sound(context: float, most: int, ahead: int, pace: float) -> None:
    ends = [group_end(0, context, 99, pace)]
    while len(ends) < 12:
        ends.append(group_end(ends[-1], context, most, pace))
    sizes = np.diff(ends)
    assert sizes.min() >= 1
    assert sizes.max() <= most
    heard = (ends[0] + ahead) / pace
    for end, following in itertools.pairwise(ends):
        played_out = heard + end - context
        assert (following + ahead) / pace <= played_out + 1e-9 or following == end + 1


def test_the_first_sound_waits_for_what_it_needs_alone(folder: Path, streams: Sequence[Any]) -> None:
    """A group long enough for the convolutions' reach, and what it looks ahead to."""
    engine = vocoder(folder, vocoder_context_frames=25)
    open_stream(engine, 0)
    engine.feed(0, PORT, payload(streams[0][:35]), False)
    assert not engine.runnable
    engine.feed(0, PORT, payload(streams[0][35:36]), False)
    assert engine.runnable
    sound = Sound()
    run_all(engine, sound)
    assert len(sound.of(0)) == (48 - 25) * 240


# -- requests


def said_so(model: Any, codes: Any, speaker: Any, steps: int, seed: int) -> Samples:
    """transformers' whole, from our noise."""
    with beginning_with_noise(model, len(codes), seed), torch.inference_mode():
        sound: torch.Tensor = model(
            torch.from_numpy(codes).T, conditioning=speaker.cond, reference_mel=speaker.ref_mel, num_steps=steps
        )
    samples: Samples = sound.reshape(-1).numpy()
    return samples


@pytest.mark.deadline(120)
@pytest.mark.slow
def test_every_chunk_size_gives_the_whole(folder: Path, model: Any, speaker: Any) -> None:
    """Fifty requests at once, each with pieces of another size."""
    codes = np.random.default_rng(1).integers(0, 128, (91, 1))
    expected = said_so(model, codes, speaker, 2, 0)
    engine = vocoder(folder, steps=2, look_ahead_blocks=None, ramp=False)
    adapter: Any = engine._adapter
    sound = Sound()
    for size in range(1, 51):
        adapter._options = {**adapter._options, "chunk_frames": size}
        open_stream(engine, size)
    fed = dict.fromkeys(range(1, 51), 0)
    while any(at < len(codes) for at in fed.values()):
        for key, at in fed.items():
            if at < len(codes):
                fed[key] = at + 3 + key % 8
                engine.feed(key, PORT, payload(codes[at : fed[key]]), fed[key] >= len(codes))
        engine.step(sound)
    run_all(engine, sound)
    for key in fed:
        np.testing.assert_allclose(sound.of(key), expected, atol=TOLERANCE)
    assert len(sound.pieces[1]) > len(sound.pieces[20]) > len(sound.pieces[50])


def test_a_seed_is_a_sound(folder: Path, model: Any, speaker: Any, streams: Sequence[Any]) -> None:
    engine = vocoder(folder, look_ahead_blocks=None)
    sound = Sound()
    for key, seed in enumerate((5, 6, 5)):
        open_stream(engine, key, {"speech": Speech(seed=seed)})
        engine.feed(key, PORT, payload(streams[1]), True)
    run_all(engine, sound)
    np.testing.assert_allclose(sound.of(0), said_so(model, streams[1], speaker, STEPS, 5), atol=TOLERANCE)
    np.testing.assert_allclose(sound.of(2), sound.of(0), atol=1e-6)
    assert np.abs(sound.of(1) - sound.of(0)).max() > 0.01


def test_company_changes_nobodys_sound_and_who_leaves_leaves_nothing(folder: Path, streams: Sequence[Any]) -> None:
    engine = vocoder(folder)
    (codes, *_) = streams
    alone = decode_in_pieces(engine, [codes], lambda stream, turn: 12).of(0)
    sound = Sound()
    for key in range(4):
        open_stream(engine, key, {"speech": Speech(initial_chunk_frames=1 + 10 * key)})
    for turn in range(0, len(codes), 12):
        for key in range(4):
            if key not in (1, 2) or turn < 40:
                engine.feed(key, PORT, payload(codes[turn : turn + 12]), turn + 12 >= len(codes))
        engine.step(sound)
        if turn == 36:  # one between two pieces, one while a piece waits
            engine.abort(1)
            engine.feed(2, PORT, payload(codes[:12]), True)
            engine.abort(2)
    run_all(engine, sound)
    assert sound.usage.keys() == {0, 3}
    assert not sound.errors
    for key in (0, 3):
        np.testing.assert_allclose(sound.of(key), alone, atol=1e-6)
    assert len(sound.pieces[0][0]) < len(sound.pieces[3][0])
    assert not any(value for name, value in engine.counters().items() if not name.endswith("_total"))


def test_less_context_is_heard(folder: Path, streams: Sequence[Any]) -> None:
    options: dict[str, Any] = {"window_blocks": 1, "chunk_frames": 12, "ramp": False}
    less: list[dict[str, Any]] = [
        {"look_ahead_blocks": 0},
        {"left_context_blocks": 0},
        {"vocoder_context_frames": 2},
    ]
    whole, *others = (
        decode_in_pieces(vocoder(folder, **options | more), streams[:1], lambda stream, turn: 12).of(0)
        for more in ({}, *less)
    )
    for sound in others:
        assert np.abs(sound - whole).max() > 20 * TOLERANCE


def test_sound_goes_on_behind_what_was_heard(folder: Path, streams: Sequence[np.ndarray[Any, Any]]) -> None:
    """Groups are those of the whole, so that it does so with little ahead too."""
    engine = vocoder(folder, chunk_frames=8)
    adapter: Any = engine._adapter
    rate = adapter._hop * adapter._flow.repeats
    vocoded: list[int] = []
    make = adapter._vocoder

    def counted(mel: torch.Tensor, first: int, last: int) -> torch.Tensor:
        vocoded.append(len(mel) * (last - first))
        made: torch.Tensor = make(mel, first, last)
        return made

    adapter._vocoder = counted
    starts = check_every_delivery(
        engine, streams[0], [0, 1, 20 * rate + 3, 55 * rate, 61 * rate], tolerance=1e-4, slack=2 * adapter._hop
    )
    assert starts[-1] > 40 * rate
    assert sum(vocoded[-4:]) < 61 * adapter._flow.repeats
