"""Qwen3-ASR's stages against transformers' own generation, on the same folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoProcessor, Qwen3ASRForConditionalGeneration

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Transcription
from omni_actors.worker.engine import Work

from ..listening import Asked, Hearing, Said, Samples, check_bounded, check_every_cut, noise

FAMILY = "omni_actors.models.qwen3_asr"
TOKENS = 24

CASES = [
    (noise(1.5, 0), Transcription()),
    (noise(0.3, 1), Transcription(language="en")),
    (noise(3.7, 2), Transcription(language="German", prompt="robot words")),
    (noise(5.01, 3), Transcription(prompt="listen")),
    (noise(1.5, 4), Transcription(language="zh")),
    (noise(2.0, 5), Transcription()),
]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3-asr")


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Hearing:
    return Hearing(FAMILY, folder)


class Reference:
    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = Qwen3ASRForConditionalGeneration.from_pretrained(folder).eval()

    def inputs(self, samples: Samples, asked: Transcription) -> dict[str, torch.Tensor]:
        return dict(
            self.processor.apply_transcription_request(
                samples, language=asked.language, prompt=asked.prompt or None, processor_kwargs={}
            )
        )

    def tokens(self, samples: Samples, asked: Transcription) -> list[int]:
        inputs = self.inputs(samples, asked)
        made = self.model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
        found: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
        return found


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_the_features_are_transformers_own(hearing: Hearing, reference: Reference) -> None:
    # The last is encoded in several steps, and ends within a window.
    for samples, asked in [*CASES, (noise(21.3, 6), Transcription())]:
        inputs = reference.inputs(samples, asked)
        with torch.inference_mode():
            theirs = reference.model.model.get_audio_features(
                inputs["input_features"], inputs["input_features_mask"]
            ).pooler_output
        (ours,) = hearing.features([samples])
        np.testing.assert_allclose(ours.tensors["features"], theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize("together", [False, True])
def test_greedy_tokens_are_transformers_own(hearing: Hearing, reference: Reference, together: bool) -> None:
    expected = [reference.tokens(samples, asked) for samples, asked in CASES]
    for tokens in expected:
        assert len(set(tokens)) > TOKENS // 2  # an answer that repeats itself would prove little
    requests = [Asked([samples], asked) for samples, asked in CASES]
    if together:
        said = hearing.run(requests)
        assert [said.tokens[key] for key in range(len(CASES))] == expected
    else:
        assert [hearing.run([asked]).tokens[0] for asked in requests] == expected


def test_prompts_that_another_engine_computed_go_on_the_same(hearing: Hearing, folder: Path) -> None:
    requests = [Asked([samples], asked) for samples, asked in CASES]
    said = hearing.run(requests)
    assert Hearing(FAMILY, folder).run_in_halves(requests, hearing) == [said.tokens[key] for key in range(len(CASES))]


def test_a_bounded_transcript_is_the_beginning_of_the_unbounded_one(hearing: Hearing, folder: Path) -> None:
    asked = Transcription(language="en")
    check_bounded(hearing, [samples for samples, _ in CASES], asked, Hearing(FAMILY, folder))


def test_a_bound_beyond_the_context_is_what_the_context_leaves(folder: Path) -> None:
    hearing = Hearing(FAMILY, folder, max_model_len=60)
    said = hearing.run([Asked([noise(0.3, 1)], Transcription(language="en", max_tokens=10**9))])
    assert not said.errors
    assert said.usage[0].prompt_tokens + said.usage[0].completion_tokens == 60
    assert said.reasons[0] == "length"


def test_features_in_a_wrong_place_change_the_answer(folder: Path, reference: Reference) -> None:
    def late(payload: Payload) -> Payload:
        return Payload(payload.kind, payload.meta, {"features": np.roll(payload.tensors["features"], 1, 0)})

    samples, asked = CASES[0]
    said = Hearing(FAMILY, folder, late).run([Asked([samples], asked)])
    assert said.tokens[0] != reference.tokens(samples, asked)


@pytest.mark.parametrize(("written", "same"), [(" ", None), ("Auto", None), ("cantonese", "yue"), ("ZH_cn", "zh")])
def test_a_language_is_written_in_many_ways(hearing: Hearing, written: str, same: str | None) -> None:
    decoder = hearing.decoder
    expected = decoder.transcription_tokens(Transcription(language=same))
    assert decoder.transcription_tokens(Transcription(language=written)) == expected


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Transcription(language="tlh"), "language"),
        (Transcription(task="translate"), "task"),
        (Transcription(timestamps="word"), "response_format"),
    ],
)
def test_what_it_cannot_do_is_refused(hearing: Hearing, asked: Transcription, param: str) -> None:
    with pytest.raises(OmniError) as refused:
        hearing.run([Asked([noise(0.5, 0)], asked)])
    assert refused.value.info.status == 400
    assert refused.value.info.param == param
    hearing.engine.abort(0)


def test_a_clip_is_encoded_a_window_a_step_and_once(folder: Path) -> None:
    tower = Hearing(FAMILY, folder).tower
    samples = noise(70.0, 8)
    payload = Payload("pcm", {"index": 0, "sample_rate": 16_000}, {"samples": samples})

    def pieces() -> list[Payload | None]:
        (result,) = tower.run(tower.feed(Work(0, "", {}), "audio", payload, True))
        return [piece.payload for piece in result.pieces]

    *computing, first = pieces()
    assert len(computing) > 3
    assert not any(computing)
    (again,) = pieces()
    assert first is not None
    assert again is not None
    assert again.meta == first.meta
    assert again.tensors["features"].tobytes() == first.tensors["features"].tobytes()
    assert tower.counters() == {"cache_hits_total": 1, "cache_misses_total": 1}


def test_an_abort_leaves_nothing(hearing: Hearing) -> None:
    """With its clip still coming, with its prompt half computed, and with its answer half written."""
    engine, decoder = hearing.engine, hearing.decoder
    asked = Asked([noise(20.0, 7)], Transcription())
    (payload,) = hearing.features(asked.clips)
    for steps in (None, 0, 1, 4):
        engine.admit(hearing.work(0, asked))
        if steps is not None:
            engine.feed(0, "features", payload, True)
        out = Said()
        for _ in range(steps or 0):
            assert engine.step(out)  # type: ignore[arg-type]
        engine.abort(0)
        assert not engine.runnable
        assert not decoder.decoder.requests
        assert not decoder._requests
        assert not decoder._heads
        counters = engine.counters()
        assert (counters["requests"], counters["kv_blocks_used"]) == (0, 0)


def test_a_chat_is_refused(hearing: Hearing) -> None:
    with pytest.raises(OmniError) as refused:
        hearing.run([Asked([], Prompt(text="hello"))])
    assert refused.value.info.status == 400


@pytest.mark.parametrize("case", CASES[:2], ids=["any language", "asked language"])
def test_a_transcription_goes_on_behind_another_attempt(hearing: Hearing, case: tuple[Samples, Transcription]) -> None:
    """The language is told once, and its name is no part of the transcript."""
    samples, asked = case
    said = check_every_cut(lambda prefix: hearing.run([Asked([samples], asked)], prefix))
    assert len(said) > 8
    bounded = replace(asked, max_tokens=9)
    cut = check_every_cut(lambda prefix: hearing.run([Asked([samples], bounded)], prefix))
    assert [token for delta in cut for token in delta.token_ids] == [t for it in said for t in it.token_ids][:9]
    assert cut[-1].finish_reason == "length"
