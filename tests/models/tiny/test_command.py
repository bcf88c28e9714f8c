"""``omni-actors models tiny``, and the cache of the tests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_actors.models.tiny import FAMILIES
from omni_actors.models.tiny.cache import cached
from omni_actors.models.weights.cli import models_group


@pytest.mark.process
def test_the_command_writes_a_folder_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "model"
    done = CliRunner().invoke(models_group, ["tiny", "qwen3-asr", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output == f"qwen3-asr: {folder}\n"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ASRForConditionalGeneration"]
    again = CliRunner().invoke(models_group, ["tiny", "qwen3-asr", str(folder)])
    assert again.exit_code == 1
    assert f"{folder} is not empty" in again.output


def test_a_family_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(models_group, ["tiny", "qwen9", str(tmp_path)])
    assert done.exit_code == 2
    for family in FAMILIES:
        assert family in done.output


def test_builders_at_the_same_time_leave_one_whole_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(cached, ["qwen3-asr"] * 2)
    assert one == other
    assert [path.name for path in one.parent.iterdir()] == ["qwen3-asr"]
    names = {path.name for path in one.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert cached("qwen3-asr") == one
