"""Clips are heard once, and what a checkpoint cannot do is refused by name."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.qwen3_tts.drive import Ask, hear, shared_voice, speech, submit, talker_of, voice_of
from tests.models.qwen3_tts.reference import reference
from tests.models.qwen3_tts.samples import KINDS, folder_of, voice_clip

from omni_actors.connectors.payload import pcm_payload
from omni_actors.models.common.speech import Clip
from omni_actors.models.qwen3_tts.folder import Folder
from omni_actors.models.qwen3_tts.pipeline import FUSED, PIPELINE, describe, describe_fused
from omni_actors.models.qwen3_tts.talker import Qwen3TTSTalker
from omni_actors.models.qwen3_tts.voice import Qwen3TTSVoice
from omni_actors.pipelines.planning.checkpoint_facts import apply_checkpoint_facts, drop_stages
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.oneshot import GenerationEngine

TEXT = "Hello world, how are you?"


def counts(engine: GenerationEngine) -> tuple[float, float]:
    counters = engine.counters()
    return counters["clip_hits_total"], counters["clip_misses_total"]


TIMBRE, WHOLE = speech(TEXT, x_vector_only=True), speech(TEXT, ref_text="what is said")


def test_a_clip_is_heard_once() -> None:
    engine = voice_of()
    first = hear(engine, Ask(TIMBRE, voice_clip(1.5)))
    assert counts(engine) == (0, 1)
    assert first.tensors["codes"].size == 0
    again, timbre, whole = (hear(engine, Ask(it, voice_clip(1.5))) for it in (WHOLE, TIMBRE, WHOLE))
    assert counts(engine) == (3, 1)
    assert np.array_equal(timbre.tensors["timbre"], first.tensors["timbre"])
    assert timbre.tensors["codes"].size == 0
    assert np.array_equal(again.tensors["codes"], whole.tensors["codes"])
    hear(engine, Ask(TIMBRE, voice_clip(1.5, pitch=120.0)))
    assert counts(engine) == (3, 2)


def test_old_clips_make_room() -> None:
    engine = voice_of(clip_cache_mib=0.2)  # a clip of 1.5 s takes 0.14
    for pitch in (100.0, 110.0, 100.0, 100.0):
        hear(engine, Ask(TIMBRE, voice_clip(1.5, pitch=pitch)))
    assert counts(engine) == (1, 3)
    assert engine.counters()["clip_evictions_total"] == 2


def test_a_clip_at_another_rate_is_the_same_voice() -> None:
    """A clip comes at its file's rate: resampled as the family's own code does, it is heard as there."""
    adapter = shared_voice()._adapter
    assert isinstance(adapter, Qwen3TTSVoice)
    assert adapter._cloner is not None
    heard = adapter._cloner.hear(Clip(voice_clip(2.0, rate=16000), 16000), codes=True)
    own = reference(folder_of("qwen3-tts-base"))
    samples = Clip(voice_clip(2.0, rate=16000), 16000).at(24000)
    torch.testing.assert_close(heard.timbre, own.model.extract_speaker_embedding(samples, 24000).clone())
    assert heard.codes is not None
    assert torch.equal(heard.codes, own.encoder.encode(samples))


@pytest.mark.parametrize("seconds", [0.5, 31.0])
def test_a_clip_of_another_length_is_refused(seconds: float) -> None:
    engine = shared_voice()
    with pytest.raises(OmniError) as refused:
        hear(engine, Ask(TIMBRE, voice_clip(seconds)))
    assert (refused.value.info.param, refused.value.info.status) == ("ref_audio", 400)
    assert engine.counters()["requests"] == 0


def test_a_second_clip_is_refused() -> None:
    engine = shared_voice()
    engine.admit(Work(1, "r", {"speech": WHOLE}, frozenset({"reference"}), routed=True))
    assert engine.feed(1, "reference", pcm_payload(voice_clip(1.5), 24000), False)
    with pytest.raises(OmniError) as refused:
        engine.feed(1, "reference", pcm_payload(voice_clip(1.5), 24000), True)
    assert (refused.value.info.param, refused.value.info.status) == ("ref_audio", 400)
    assert engine.counters()["requests"] == 0


# --- what a checkpoint cannot do --------------------------------------------------------------------------------------


@cache
def shared(kind: str) -> AutoregressiveEngine:
    return talker_of(kind)


def refusal(kind: str, clip: np.ndarray[Any, Any] | None = None, **fields: Any) -> tuple[str | None, int]:
    engine = shared(kind)
    text = fields.pop("text", TEXT)
    with pytest.raises(OmniError) as refused:
        submit(engine, 1, Ask(speech(text, **fields), clip))
    engine.abort(1)
    assert engine.counters()["requests"] == 0
    return refused.value.info.param, refused.value.info.status


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": " "}, "input"),
        ({"voice": "nobody"}, "voice"),
        ({"language": "klingon"}, "language"),
        ({"language": "sichuan_dialect"}, "language"),
        ({"task_type": "clone"}, "task_type"),
        ({"task_type": "voice_design"}, "task_type"),
        ({"ref_text": "words"}, "ref_text"),
        ({"x_vector_only": True}, "x_vector_only_mode"),
        ({"speed": 1.5}, "speed"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0}, "top_p"),
    ],
)
def test_what_a_voice_cannot_do_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal("qwen3-tts", **fields) == (param, 400)


def test_what_a_design_cannot_do_is_refused() -> None:
    assert refusal("qwen3-tts-design") == ("instructions", 400)
    assert refusal("qwen3-tts-design", instructions="A robot.", voice="ryan") == ("voice", 400)


@pytest.mark.parametrize(
    ("seconds", "fields", "param"),
    [
        (None, {}, "ref_audio"),
        (1.5, {}, "ref_text"),
        (1.5, {"ref_text": " "}, "ref_text"),
        (1.5, {"ref_text": "words", "instructions": "Slow."}, "instructions"),
        (1.5, {"ref_text": "words", "voice": "ryan"}, "voice"),
    ],
)
def test_what_a_clone_cannot_do_is_refused(seconds: float | None, fields: dict[str, Any], param: str) -> None:
    assert refusal("qwen3-tts-base", None if seconds is None else voice_clip(seconds), **fields) == (param, 400)


def test_nothing_is_left_of_one_that_has_no_room() -> None:
    assert refusal("qwen3-tts", max_tokens=40_000) == ("max_new_tokens", 400)
    assert refusal("qwen3-tts", text="word " * 30_000) == ("input", 400)
    adapter = shared("qwen3-tts")._adapter
    assert isinstance(adapter, Qwen3TTSTalker)
    assert adapter.requests == {}


def test_a_limit_over_what_the_cache_holds_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's context would hold it; the memory for keys and values does not. A text alone is another matter."""
    monkeypatch.setattr(shared("qwen3-tts")._prompts, "max_len", 200)
    assert refusal("qwen3-tts", max_tokens=1_000) == ("max_new_tokens", 400)
    assert refusal("qwen3-tts", text="word " * 1_000, max_tokens=1) == ("input", 400)


def test_nothing_is_left_of_a_request() -> None:
    engine = shared("qwen3-tts-base")
    adapter = engine._adapter
    assert isinstance(adapter, Qwen3TTSTalker)
    engine.admit(Work(1, "r", {"speech": WHOLE}, frozenset({"voice"}), routed=True))
    engine.abort(1)
    submit(engine, 2, Ask(WHOLE, voice_clip(1.5)))
    engine.abort(2)
    left = [adapter.requests, adapter._waiting, adapter._context]
    assert left == [{}, {}, {}]


def test_what_is_honoured_depends_on_the_checkpoint(tmp_path: Path) -> None:
    facts = [describe(folder_of(it)) for it in KINDS]
    voices, design, base = (drop_stages(apply_checkpoint_facts(PIPELINE, it), it.lacks) for it in facts)
    assert voices.voices == ("vivian", "ryan", "eric")
    assert voices.languages == ("chinese", "english", "german")
    assert [it.task_types for it in (voices, design, base)] == [("custom_voice",), ("voice_design",), ("clone",)]
    assert [("audio" in it.tasks[0].entries) for it in (voices, design, base)] == [False, False, True]
    assert [len(it.stages) for it in (voices, design, base)] == [2, 2, 3]
    assert [("instructions" in (it.speech_fields or ())) for it in (voices, design, base)] == [True, True, False]
    assert [("ref_text" in (it.speech_fields or ())) for it in (voices, design, base)] == [False, False, True]
    fused = apply_checkpoint_facts(FUSED, describe_fused(folder_of("qwen3-tts")))
    assert fused.stages[0].options["max_tokens"].default == 8192
    # The small custom voices hear no instructions.
    small = tmp_path / "small"
    shutil.copytree(folder_of("qwen3-tts"), small)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"tts_model_size": "0b6"}))
    assert "instructions" not in (describe(small).speech_fields or ())


def test_languages_have_names_and_codes() -> None:
    folder = Folder.read(folder_of("qwen3-tts"))
    assert folder.language("English") == folder.language("en") == folder.language("en-GB") == "english"
    assert folder.language(None) == folder.language("Auto") == "auto"
    assert folder.language_id("auto", "ryan") is None
    assert folder.language_id("zh", "ryan") == folder.language_ids["chinese"]
    assert folder.language_id(None, "eric") == folder.language_id("chinese", "eric") == 64 + 14
    assert folder.language_id("de", "eric") == folder.language_ids["german"]
