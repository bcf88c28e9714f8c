"""Kyutai speech-to-text: codec and decoder against transformers' own generation, on the same folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, KyutaiSpeechToTextForConditionalGeneration

from omni_actors.connectors.payload import Payload
from omni_actors.models.kyutai_stt.encoder import Encoder
from omni_actors.models.kyutai_stt.listener import Decoder
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Prefix
from omni_actors.protocol.params import Transcription
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.oneshot.outputs import Result

from ..listening import Said, Samples, check_every_cut, hello

RATE = 24_000


def sweep(seconds: float, seed: int) -> Samples:
    """A tone that rises, falls and changes in loudness, unlike every other, at the codec's rate."""
    random = np.random.default_rng(seed)
    time = np.arange(int(RATE * seconds)) / RATE
    pitch = 200 + 150 * np.sin(2 * np.pi * time * random.uniform(0.5, 2)) + random.uniform(0, 300)
    loud = 0.3 + 0.2 * np.sin(2 * np.pi * time * random.uniform(1, 4))
    return (loud * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)).astype(np.float32)


CLIPS = [sweep(seconds, seed) for seed, seconds in enumerate((1.5, 0.3, 3.9, 2.0, 0.08, 1.01))]


class TranscriptionHarness:
    def __init__(self, folder: Path, window: int = 250) -> None:
        told = hello(folder, "encoder", "", max_seconds=60.0, window_frames=window)
        self.encoder = Encoder(told)
        self.encoder.load(lambda text, fraction: None)
        told = hello(folder, "listener", "", max_model_len=2000, kv_memory_mib=64)
        decoder = Decoder(told)
        decoder.load(lambda text, fraction: None)
        self.decoder = decoder
        self.engine = AutoregressiveEngine(told)
        self.engine.attach(decoder)

    def codes(self, samples: Samples) -> list[Payload]:
        payload = Payload("pcm", {"index": 0, "sample_rate": RATE}, {"samples": samples})
        (result,) = self.encoder.run(self.encoder.feed(Work(0, "", {}), "audio", payload, True))
        assert isinstance(result, Result)
        return [piece.payload for piece in result.pieces if piece.payload is not None]

    def run(self, clips: Sequence[Samples], asked: Transcription | None = None, prefix: Prefix | None = None) -> Said:
        """All at the same time, to the end; behind what earlier attempts have said."""
        out = Said()
        for key, samples in enumerate(clips):
            params = {"transcription": asked or Transcription()}
            self.engine.admit(Work(key, f"request-{key}", params, frozenset(("codes",)), visible=True, prefix=prefix))
            payloads = self.codes(samples)
            for payload in payloads:
                self.engine.feed(key, "codes", payload, payload is payloads[-1])
        while self.engine.runnable:
            assert self.engine.step(out)  # type: ignore[arg-type]
        return out


class Reference:
    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = KyutaiSpeechToTextForConditionalGeneration.from_pretrained(folder).eval()

    @torch.inference_mode()
    def codes(self, samples: Samples) -> torch.Tensor:
        found: torch.Tensor = self.model.codec_model.encode(self.processor(audio=samples)["input_values"]).audio_codes
        return found[0].T

    def tokens(self, samples: Samples) -> list[int]:
        made: list[int] = self.model.generate(**self.processor(audio=samples))[0].tolist()
        return made[1:]  # behind the beginning of the stream

    def text(self, tokens: list[int]) -> str:
        text: str = self.processor.decode(tokens, skip_special_tokens=True)
        return text


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("kyutai-stt")


@pytest.fixture(scope="module")
def harness(folder: Path) -> TranscriptionHarness:
    return TranscriptionHarness(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.mark.parametrize("window", [250, 7, 1])
def test_the_codes_are_transformers_own_however_they_are_cut(folder: Path, reference: Reference, window: int) -> None:
    cut = TranscriptionHarness(folder, window)
    for samples in CLIPS[:3]:
        ours = np.concatenate([payload.tensors["codes"] for payload in cut.codes(samples)])
        assert ours.tolist() == reference.codes(samples)[: len(ours)].tolist()


@pytest.mark.parametrize("together", [False, True])
def test_greedy_tokens_are_transformers_own(
    harness: TranscriptionHarness, reference: Reference, together: bool
) -> None:
    expected = [reference.tokens(samples) for samples in CLIPS]
    assert len(expected[2]) > 2 * 24  # past the decoder's window
    for tokens in expected:
        assert len(set(tokens)) > len(tokens) // 2  # an answer that repeats itself would prove little
    if together:
        said = harness.run(CLIPS)
        assert [said.tokens[key] for key in range(len(CLIPS))] == expected
        assert [said.texts[key].strip() for key in range(len(CLIPS))] == [reference.text(it).strip() for it in expected]
    else:
        assert [harness.run([samples]).tokens[0] for samples in CLIPS] == expected


def test_text_is_written_while_the_clip_is_still_encoded(folder: Path, reference: Reference) -> None:
    harness = TranscriptionHarness(folder, window=8)
    expected = reference.tokens(CLIPS[0])
    out = Said()
    params = {"transcription": Transcription()}
    harness.engine.admit(Work(0, "request-0", params, frozenset(("codes",)), visible=True))
    payloads = harness.codes(CLIPS[0])
    assert len(payloads) > 3
    for place, payload in enumerate(payloads):
        harness.engine.feed(0, "codes", payload, payload is payloads[-1])
        while harness.engine.runnable and harness.engine.step(out):  # type: ignore[arg-type]
            pass
        assert out.tokens[0] == expected[: 8 * (place + 1) + 1]
    assert out.tokens[0] == expected
    assert out.reasons[0] == "stop"
    assert 0 in out.usage


def test_a_bounded_transcript_is_the_beginning_of_the_unbounded_one(
    harness: TranscriptionHarness, reference: Reference
) -> None:
    """An answer that is cut is so in the end; one whose clip is over before its limit is whole."""
    expected = reference.tokens(CLIPS[0])
    for limit, reason in ((8, "length"), (len(expected), "stop"), (10**9, "stop")):
        said = harness.run(CLIPS[:1], Transcription(max_tokens=limit))
        assert said.tokens[0] == expected[:limit]
        assert said.usage[0].completion_tokens == min(limit, len(expected))
        assert said.reasons[0] == reason
    assert not harness.decoder.decoder.heard


def test_another_clip_is_another_answer(harness: TranscriptionHarness) -> None:
    one, other = (harness.run([sweep(2.0, seed)]).tokens[0] for seed in (10, 11))
    assert len(one) == len(other)
    assert one != other


def test_codes_of_a_wrong_frame_change_the_answer(folder: Path, reference: Reference) -> None:
    harness = TranscriptionHarness(folder)
    embedded = harness.decoder._embedded
    harness.decoder._embedded = lambda codes: embedded(codes.roll(1, 0))  # type: ignore[method-assign]
    assert harness.run([CLIPS[0]]).tokens[0] != reference.tokens(CLIPS[0])


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (Transcription(language="de"), "language"),
        (Transcription(prompt="words"), "prompt"),
        (Transcription(timestamps="segment"), "response_format"),
    ],
)
def test_what_it_cannot_do_is_refused(harness: TranscriptionHarness, asked: Transcription, param: str) -> None:
    with pytest.raises(OmniError) as refused:
        harness.run([CLIPS[1]], asked)
    assert refused.value.info.status == 400
    assert refused.value.info.param == param


@pytest.mark.parametrize("language", ["", "auto", "French", "EN-us"])
def test_a_language_is_written_in_many_ways(harness: TranscriptionHarness, language: str) -> None:
    work = Work(0, "request-0", {"transcription": Transcription(language=language)}, frozenset(("codes",)))
    harness.decoder.open(work)
    harness.decoder.close(0)


def test_nothing_is_left(harness: TranscriptionHarness) -> None:
    harness.run(CLIPS[:2])
    assert not harness.decoder.decoder.heard
    assert not harness.decoder._requests


def test_a_transcription_goes_on_behind_another_attempt(harness: TranscriptionHarness) -> None:
    said = check_every_cut(lambda prefix: harness.run([CLIPS[0]], prefix=prefix))
    assert said[-1].finish_reason == "stop"
    assert len(said) > 8
    bounded = Transcription(max_tokens=7)
    cut = check_every_cut(lambda prefix: harness.run([CLIPS[0]], bounded, prefix))
    assert cut[-1].finish_reason == "length"
    assert sum(len(delta.token_ids) for delta in cut) == 7
