"""The stages against the family's own code on the same folder, float32, greedy: every step's numbers, the codes, and
the sound; alone and side by side. Planted faults must show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.qwen3_tts.cases import CASES, CLONES, FRAMES, KINDS, LONG, VOICES, Case, wanted
from tests.models.qwen3_tts.drive import Ask, codec_of, decode, fused_of, run, speech, talker_of
from tests.models.qwen3_tts.reference import Clip, reference
from tests.models.qwen3_tts.samples import folder_of, voice_clip

from omni_actors.models.qwen3_tts import talker as talker_module
from omni_actors.models.qwen3_tts.prompt import Layout, lay_out
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk


def differences(engine: AutoregressiveEngine, cases: list[Case], concurrency: int = 1) -> list[str]:
    """Which cases come out otherwise than the reference has them."""
    out = run(engine, [case.ask() for case in cases], concurrency)
    assert not out.errors
    found = []
    for key, case in enumerate(cases):
        if not torch.equal(out.codes(key), wanted(case)):
            found.append(f"{case}: {out.codes(key)[:, 0].tolist()} for {wanted(case)[:, 0].tolist()}")
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_codes_are_the_references(kind: str, concurrency: int) -> None:
    assert differences(talker_of(kind), KINDS[kind], concurrency) == []


def test_codes_survive_preemption_and_chunked_prompts() -> None:
    """Little memory and small steps: requests are thrown out and computed again, prompts come in pieces."""
    engine = talker_of("qwen3-tts", block_size=4, kv_blocks=56, step_tokens=24, max_batch=8)
    assert differences(engine, VOICES, 8) == []
    assert engine.counters()["preemptions_total"] > 0


@pytest.mark.torch
def test_the_reference_does_not_repeat_itself() -> None:
    """Else the comparison would say little."""
    codes = [wanted(case) for case in CASES]
    assert len({it.numpy().tobytes() for it in codes}) == len(codes)
    frames = [tuple(frame) for it in codes for frame in it.tolist()]
    assert len(set(frames)) > 0.7 * len(frames)
    assert any(len(it) < FRAMES for it in codes), "none reaches its end mark"


@pytest.mark.parametrize("case", [VOICES[7], CLONES[1], CLONES[4]], ids=["voice", "timbre", "clip"])
def test_every_step_has_the_references_numbers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = talker_of(case.kind)
    outputs: list[StepOutput] = []
    compute = engine._runner.run

    def recorded(chunks: list[ScheduledChunk]) -> StepOutput:
        output: StepOutput = compute(chunks)
        assert output.hidden is not None
        outputs.append(StepOutput(output.logits.clone(), output.hidden.clone()))
        return output

    monkeypatch.setattr(engine._runner, "run", recorded)
    assert differences(engine, [case]) == []
    with case.own.traced() as trace:
        fields = {"voice": "vivian"} | case.fields if case.kind == "qwen3-tts" else case.fields
        case.own.codes(case.text, clip=case.reference_clip, frames=FRAMES, **fields)
    assert len(outputs) > 4
    for output, hidden, logits in zip(outputs, trace.hidden, trace.logits, strict=False):
        assert output.hidden is not None
        torch.testing.assert_close(output.hidden[0], hidden, rtol=0, atol=1e-4)
        chosen = output.logits[0].isfinite()
        assert chosen.sum() == 65, "the codes and the end mark may be chosen, nothing else"
        scale = float(logits.abs().max())
        torch.testing.assert_close(output.logits[0][chosen], logits[chosen], rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("place", [0, 3, 4])
def test_a_clones_prompt_may_hold_the_whole_text(place: int) -> None:
    case = CLONES[place]
    engine = talker_of("qwen3-tts-base", non_streaming_mode=True)
    got = run(engine, [case.ask()]).codes(0)
    want = case.own.codes(case.text, clip=case.reference_clip, frames=FRAMES, non_streaming=True, **case.fields)
    assert torch.equal(got, want)
    assert not torch.equal(got, wanted(case))


def test_a_repetition_penalty_counts_what_was_spoken() -> None:
    fields: dict[str, Any] = {"voice": "ryan", "repetition_penalty": 1.8}
    got = run(talker_of("qwen3-tts"), [Ask(speech(LONG, max_tokens=24, **fields))]).codes(0)
    own = reference(folder_of("qwen3-tts"))
    assert torch.equal(got, own.codes(LONG, frames=24, **fields))
    assert not torch.equal(got[:12], own.codes(LONG, frames=12, voice="ryan"))


# --- sound -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_two_stages_and_one_sound_like_the_reference(kind: str) -> None:
    cases = KINDS[kind][1::2]
    asks = [case.ask() for case in cases]
    frames = run(talker_of(kind), asks, 8)
    codec = codec_of(kind)
    fused = run(fused_of(kind), asks, 8)
    alone = run(fused_of(kind), asks, 1)
    for key, case in enumerate(cases):
        want = case.own.sound(wanted(case), case.reference_clip)
        payloads = frames.payloads[key]
        context = payloads[0].meta.get("context", 0)
        codes = torch.from_numpy(np.concatenate([it.tensors["codes"] for it in payloads]))
        assert context == (0 if case.clip_text is None else round(12.5 * (case.clip or (0,))[0]))
        for sound in (decode(codec, codes, context), fused.sound(key), alone.sound(key)):
            assert sound.shape == want.shape
            np.testing.assert_allclose(sound, want, rtol=0, atol=1e-4)


def test_drawn_frames_are_the_same_in_two_stages_and_one() -> None:
    """A draw depends on the seed and the place alone."""
    fields = {"temperature": None, "repetition_penalty": None, "voice": "ryan"}
    asks = [Ask(speech(LONG, seed=seed, **fields)) for seed in (1, 2, 1)]
    frames = run(talker_of("qwen3-tts"), asks, 3)
    fused = run(fused_of("qwen3-tts"), asks, 3)
    own = reference(folder_of("qwen3-tts"))
    for key in range(3):
        np.testing.assert_allclose(fused.sound(key), own.sound(frames.codes(key)), rtol=0, atol=1e-4)
    assert torch.equal(frames.codes(0), frames.codes(2))
    assert not torch.equal(frames.codes(0)[:4], frames.codes(1)[:4])


# --- planted faults --------------------------------------------------------------------------------------------------


def _late_text(layout: Layout) -> None:
    if layout.beside:
        layout.beside.insert(0, layout.beside[-1])


def _no_speaker(layout: Layout) -> None:
    layout.speaker_at = None


def _frames_one_row_late(layout: Layout) -> None:
    if layout.frames:
        layout.frames_at -= 1


def _marks_exchanged(layout: Layout) -> None:
    layout.codec[-1], layout.codec[4] = layout.codec[4], layout.codec[-1]


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        (_late_text, CLONES[1]),
        (_no_speaker, CLONES[0]),
        (_frames_one_row_late, CLONES[6]),
        (_marks_exchanged, VOICES[3]),
    ],
)
def test_a_wrong_prompt_shows(fault: Callable[[Layout], None], case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lay_out

    def wrong(*arguments: Any) -> Layout:
        layout = right(*arguments)
        fault(layout)
        return layout

    monkeypatch.setattr(talker_module, "lay_out", wrong)
    assert differences(talker_of(case.kind), [case]) != []


def _no_last_layer(engine: AutoregressiveEngine) -> None:
    engine._adapter.decoder._layers._layers.pop()  # type: ignore[attr-defined]


def _residuals_of_the_wrong_group(engine: AutoregressiveEngine) -> None:
    embeddings = engine._adapter.depth._embeddings  # type: ignore[attr-defined]
    embeddings[0], embeddings[1] = embeddings[1], embeddings[0]


def _no_projection(engine: AutoregressiveEngine) -> None:
    depth = engine._adapter.depth  # type: ignore[attr-defined]
    project = depth._project
    depth._project = lambda x: project(x) * 1.1


@pytest.mark.parametrize("fault", [_no_last_layer, _residuals_of_the_wrong_group, _no_projection])
def test_a_wrong_network_shows(fault: Callable[[AutoregressiveEngine], None]) -> None:
    engine = talker_of("qwen3-tts")
    fault(engine)
    assert differences(engine, VOICES[:3]) != []


def test_a_codec_that_does_not_hear_the_clip_shows() -> None:
    case = CLONES[5]
    clip = case.reference_clip
    assert isinstance(clip, Clip)
    want = case.own.sound(wanted(case), clip)
    deaf = decode(codec_of(case.kind), wanted(case))
    assert np.abs(deaf - want).max() > 1e-3


def test_another_clip_is_another_voice() -> None:
    engine = talker_of("qwen3-tts-base")
    asks = [Ask(speech(LONG, x_vector_only=True), voice_clip(1.5, pitch=pitch)) for pitch in (120.0, 200.0)]
    out = run(engine, asks)
    assert not torch.equal(out.codes(0), out.codes(1))
