"""The demo's recogniser on its real weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soxr
import torch
from tests.models.omni_demo.harness import Stage, hear
from tests.models.omni_demo.recordings import Recording, recordings, whole_tale
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

from omni_actors.connectors.payload import Payload, pcm_payload
from omni_actors.models.omni_demo.whisper import Whisper
from omni_actors.orchestrator.ledger import StageLedger
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Transcription
from omni_actors.protocol.request import TextDelta

pytestmark = [pytest.mark.weights, pytest.mark.deadline(120)]

RATE = 16_000


@pytest.fixture(scope="module")
def clips() -> dict[str, Recording]:
    return {recording.name: recording for recording in recordings()}


def payload(recording: Recording) -> Payload:
    return pcm_payload(recording.samples, recording.rate)


def test_a_clip_gives_one_delta_with_its_text_and_length(recogniser: Stage, clips: dict[str, Recording]) -> None:
    clip = clips["quick_brown_fox"]
    key = recogniser.admit(Transcription(), "audio", [payload(clip)])
    out = recogniser.run()
    (delta,) = out.texts
    assert delta.text == "The quick brown fox jumps over the lazy dog."
    assert delta.finish_reason == "stop"
    assert delta.meta == {"language": "en", "duration": pytest.approx(clip.seconds, abs=0.01)}
    assert out.done[key].audio_input_s == pytest.approx(clip.seconds, abs=0.01)
    assert out.done[key].completion_tokens > 5


def test_several_clips_give_their_texts_in_order_to_client_and_next_stage(
    recogniser: Stage, clips: dict[str, Recording]
) -> None:
    chosen = [clips["quick_brown_fox"], clips["hello_world"], clips["beckett"]]
    recogniser.admit(Transcription(clips=4), "audio", [payload(c) for c in chosen] + [_silence(1.0)], routed=True)
    out = recogniser.run()
    assert [delta.index for delta in out.texts] == [0, 1, 2, 3]
    assert [delta.text.split()[0] for delta in out.texts[:3]] == ["The", "Hello", "Ever"]
    assert [p.meta for _, p in out.payloads] == [{"text": d.text, "index": d.index} for d in out.texts]


def test_requests_side_by_side_are_heard_as_each_alone(recogniser: Stage, clips: dict[str, Recording]) -> None:
    chosen = list(clips.values())[:6]
    alone = [hear(recogniser, clip.samples, clip.rate)[0] for clip in chosen]
    keys = [recogniser.admit(Transcription(), "audio", [payload(clip)]) for clip in chosen]
    batches = recogniser.engine.counters()["batches_total"]
    texts = {delta.key: delta.text for delta in recogniser.run().texts}
    assert [texts[key] for key in keys] == alone
    assert recogniser.engine.counters()["batches_total"] - batches < len(chosen)


def test_segments_lie_in_the_clip_in_order_and_hold_all_of_the_text(
    recogniser: Stage, clips: dict[str, Recording]
) -> None:
    clip = clips["beckett"]
    text, (delta,) = hear(recogniser, clip.samples, clip.rate, timestamps="segment")
    assert delta.meta is not None
    segments = delta.meta["segments"]
    times = [time for segment in segments for time in (segment["start"], segment["end"])]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= round(clip.seconds, 2)
    assert len(segments) >= 3
    assert "".join(segment["text"] for segment in segments).strip() == text
    assert all(-1.0 < segment["avg_logprob"] < 0 and segment["no_speech_prob"] < 0.5 for segment in segments)


@pytest.mark.parametrize("timestamps", ["none", "segment"])
def test_limits_of_their_own_in_one_batch_each_cut_their_transcript_alone(
    recogniser: Stage, clips: dict[str, Recording], timestamps: str
) -> None:
    clip = clips["beckett"]
    limits = [None, 1, 9]
    admitted = [
        recogniser.admit(Transcription(timestamps=timestamps, max_tokens=limit), "audio", [payload(clip)])
        for limit in limits
    ]
    batches = recogniser.engine.counters()["batches_total"]
    out = recogniser.run()
    assert recogniser.engine.counters()["batches_total"] - batches == 1
    found = {delta.key: delta for delta in out.texts}
    whole = found[admitted[0]]
    assert whole.finish_reason == "stop"
    for key, limit in zip(admitted, limits, strict=True):
        tokens = tokens_of([found[key]])
        cut = limit is not None
        assert found[key].finish_reason == ("length" if cut else "stop")
        assert whole.text.startswith(found[key].text)
        assert out.done[key].completion_tokens == (limit if cut else out.done[admitted[0]].completion_tokens)
        if timestamps == "segment":
            assert tokens == tokens_of([whole])[: len(tokens)]
            assert limit is None or limit - len(tokens) in (0, 1)  # a timestamp alone is no segment
    assert found[admitted[2]].text


def tokens_of(deltas: Sequence[TextDelta]) -> list[int]:
    """The tokens of all segments."""
    segments = [segment for delta in deltas if delta.meta for segment in delta.meta.get("segments", ())]
    return [token for segment in segments for token in segment["tokens"]]


@pytest.fixture(scope="module")
def tale_heard(recogniser: Stage) -> tuple[str, list[TextDelta]]:
    tale = whole_tale()
    assert tale.seconds > 40
    return hear(recogniser, tale.samples, tale.rate, timestamps="segment")


@pytest.mark.slow
def test_a_limit_counts_over_all_windows_of_a_clip(
    recogniser: Stage, tale_heard: tuple[str, list[TextDelta]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding ends there: no window is heard that could not say anything more."""
    text, deltas = tale_heard
    whole, first = tokens_of(deltas), len(tokens_of(deltas[:1]))
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == len(whole)
    windows: list[float] = []
    encode = Whisper._encode

    def counted(whisper: Whisper, features: torch.Tensor, window_s: float) -> torch.Tensor:
        windows.append(window_s)
        return encode(whisper, features, window_s)

    monkeypatch.setattr(Whisper, "_encode", counted)
    tale = whole_tale()
    for limit, heard in ((20, 1), (first + 10, 2)):
        windows.clear()
        said, found = hear(recogniser, tale.samples, tale.rate, timestamps="segment", max_tokens=limit)
        assert tokens_of(found) == whole[:limit]
        assert found[-1].usage is not None
        assert found[-1].usage.completion_tokens == limit
        assert [delta.finish_reason for delta in found] == [*[None] * (heard - 1), "length"]
        assert len(windows) == heard
        assert text.startswith(said)
        times = [segment["end"] for delta in found for segment in (delta.meta or {})["segments"]]
        assert times == sorted(times)
        assert times[-1] <= tale.seconds
    # An attempt that begins anew, because the worker died between the windows, goes on to the same bound.
    ledger = StageLedger("replay")
    told = [ledger.text(found[0])]
    ledger.again()
    told += [ledger.text(delta) for delta in found]
    assert [delta for delta in told if delta is not None] == found


@pytest.mark.slow
def test_a_long_reading_is_heard_to_its_end_window_by_window(tale_heard: tuple[str, list[TextDelta]]) -> None:
    text, deltas = tale_heard
    assert len(deltas) == 2
    assert [delta.finish_reason for delta in deltas] == [None, "stop"]
    counts = [0 if delta.usage is None else delta.usage.completion_tokens for delta in deltas]
    assert 0 < counts[0] < counts[1]
    segments = [segment for delta in deltas if delta.meta for segment in delta.meta["segments"]]
    assert "".join(segment["text"] for segment in segments).strip() == text
    assert all(a["end"] <= b["start"] + 0.01 for a, b in pairwise(segments))
    for phrase in ("best of times", "season of darkness", "all going direct the other way", "comparison only"):
        assert text.count(phrase) == 1, phrase


@pytest.mark.slow
def test_a_long_reading_with_a_pause_of_a_minute_loses_nothing(recogniser: Stage, clips: dict[str, Recording]) -> None:
    first, last = clips["tale 0"], clips["tale 1"]
    pause = np.zeros(60 * first.rate, np.float32)
    text, deltas = hear(recogniser, np.concatenate([first.samples, pause, last.samples]), first.rate)
    assert text.lower().count("best of times") == 1
    assert text.lower().count("age of foolishness") == 1
    assert deltas[-1].finish_reason == "stop"


def _silence(seconds: float) -> Payload:
    return pcm_payload(np.zeros(int(seconds * RATE), np.float32), RATE)


@pytest.mark.parametrize("kind", ["silence", "noise", "tone", "clicks", "sliver", "empty", "long noise"])
def test_where_nobody_speaks_nothing_is_heard(recogniser: Stage, kind: str) -> None:
    rng = np.random.default_rng(0)
    time = np.arange(3 * RATE) / RATE
    samples = {
        "silence": np.zeros(3 * RATE),
        "noise": rng.standard_normal(3 * RATE) * 0.05,
        "tone": 0.3 * np.sin(2 * np.pi * 440 * time),
        "clicks": (np.arange(3 * RATE) % 4000 == 0) * 0.9,
        "sliver": np.zeros(10),
        "empty": np.zeros(0),
        "long noise": rng.standard_normal(40 * RATE) * 0.01,
    }[kind]
    text, deltas = hear(recogniser, samples, RATE)
    assert text == ""
    assert deltas[-1].finish_reason == "stop"


def test_any_sample_rate_is_heard(recogniser: Stage, clips: dict[str, Recording]) -> None:
    clip = clips["tale 0"]
    assert clip.rate == 48_000
    low = clip.samples[: len(clip.samples) // 6 * 6].reshape(-1, 6).mean(1)
    assert "best of times" in hear(recogniser, low, 8_000)[0]


def test_a_temperature_samples_the_same_each_time(recogniser: Stage, clips: dict[str, Recording]) -> None:
    clip = clips["beckett"]
    texts = [hear(recogniser, clip.samples, clip.rate, temperature=1.0)[0] for _ in range(2)]
    assert texts[0] == texts[1]
    assert "Fail" in texts[0] or "fail" in texts[0]


def test_a_prompt_changes_how_words_are_written(recogniser: Stage, clips: dict[str, Recording]) -> None:
    clip = clips["hello_world"]
    prompted = hear(recogniser, clip.samples, clip.rate, prompt="HELLO WORLD. I WRITE EVERYTHING IN CAPITAL LETTERS.")
    assert prompted[0].isupper()


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"language": "fr"}, "language"),
        ({"task": "translate"}, "task"),
        ({"temperature": 1.5}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_the_clients_mistake(
    recogniser: Stage, asked: dict[str, str | float], param: str
) -> None:
    with pytest.raises(OmniError) as caught:
        recogniser.admit(Transcription(**asked), "audio", [])  # type: ignore[arg-type]
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


@pytest.mark.parametrize("language", ["", "auto", "English", "en-GB"])
def test_a_language_is_written_in_many_ways(recogniser: Stage, clips: dict[str, Recording], language: str) -> None:
    clip = clips["hello_world"]
    assert "hello" in hear(recogniser, clip.samples, clip.rate, language=language)[0].lower()


def test_audio_over_the_deployments_bound_is_refused(demo_weights: Path) -> None:
    recogniser = Stage("asr", demo_weights, max_seconds=2.0)
    with pytest.raises(OmniError, match="3 s long; at most 2 s") as caught:
        recogniser.admit(Transcription(), "audio", [_silence(3.0)])
    assert caught.value.info.status == 400


@pytest.mark.slow
def test_in_windows_of_30_s_greedy_text_is_that_of_transformers(
    demo_weights: Path, clips: dict[str, Recording]
) -> None:
    recogniser = Stage("asr", demo_weights, padding_s=30.0)
    folder = demo_weights / "asr"
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = WhisperTokenizer.from_pretrained(folder)
    extract = WhisperFeatureExtractor.from_pretrained(folder)
    for name, timestamps in (("tale 7", True), ("beckett", True), ("beckett", False)):
        clip = clips[name]
        samples = soxr.resample(clip.samples, clip.rate, RATE)
        features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.inference_mode():
            tokens = model.generate(features, return_timestamps=timestamps, max_new_tokens=200)[0]
        reference = tokenizer.decode(tokens, skip_special_tokens=True).strip()
        asked = "segment" if timestamps else "none"
        assert hear(recogniser, clip.samples, clip.rate, timestamps=asked)[0] == reference, (name, timestamps)
