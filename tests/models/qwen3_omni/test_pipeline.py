"""What a Qwen3-Omni folder's config says, as the plan of a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_actors.models.qwen3_omni.pipeline import PIPELINE
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError


def folder(at: Path, **more: Any) -> Path:
    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "talker_config": {"speaker_id": {"anna": 2301, "ben": 2302}},
        **more,
    }
    (at / "config.json").write_text(json.dumps(config))
    return at


def plan(model: Path | str) -> Plan:
    return resolve(str(model))


def test_a_folders_speakers_are_the_voices(tmp_path: Path) -> None:
    made = plan(folder(tmp_path))
    assert made.pipeline.name == "qwen3-omni"
    assert made.voices == ("anna", "ben")
    assert [stage.name for stage in made.pipeline.stages] == ["encoder", "thinker", "talker", "code2wav"]
    assert made.tasks["chat"].outputs == {"text": "thinker", "audio": "code2wav"}
    assert made.sample_rate == 24_000


def test_a_checkpoint_that_does_not_speak_has_no_talker(tmp_path: Path) -> None:
    made = plan(folder(tmp_path, enable_audio_output=False))
    assert [stage.name for stage in made.pipeline.stages] == ["encoder", "thinker"]
    assert made.tasks["chat"].outputs == {"text": "thinker"}
    assert set(made.tasks["chat"].entries) == {"text", "audio", "image", "video"}
    assert "speech" not in made.tasks


def test_a_config_without_a_talker_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}')
    with pytest.raises(PlanError, match="talker_config"):
        plan(tmp_path)


@pytest.mark.parametrize("name", PIPELINE.checkpoints)
def test_public_checkpoints_are_planned_without_their_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    made = plan(name)
    assert made.pipeline.name == "qwen3-omni"
    assert made.checkpoint == name
    assert made.stage("talker").options["max_tokens"] == 4096
