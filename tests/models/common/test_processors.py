"""Where the codec is that a checkpoint names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_actors.models.common.processors import audio_tokenizer_folder
from omni_actors.protocol.errors import OmniError


def checkpoint(folder: Path, file: str, name: str) -> Path:
    named = {"audio_tokenizer_class": "DacModel", "audio_tokenizer_name_or_path": name}
    folder.mkdir()
    content = {"audio_tokenizer": named} if file == "processor_config.json" else named
    (folder / file).write_text(json.dumps(content))
    return folder


def codec(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("file", ["processor_config.json", "audio_tokenizer_config.json"])
def test_it_is_in_the_folder_or_at_a_path(tmp_path: Path, file: str) -> None:
    folder = checkpoint(tmp_path / "model", file, "audio_tokenizer")
    inside = codec(folder / "audio_tokenizer")
    assert audio_tokenizer_folder(folder) == inside
    outside = codec(tmp_path / "codec")
    assert audio_tokenizer_folder(checkpoint(tmp_path / "other", file, str(outside))) == outside


def test_it_is_in_the_cache_under_its_public_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The cache's place is read from the environment of the process that looks.
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    place = cache / "models--descript--dac_44khz"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    inside = codec(place / "snapshots" / "abc")
    folder = checkpoint(tmp_path / "model", "audio_tokenizer_config.json", "descript/dac_44khz")
    assert audio_tokenizer_folder(folder) == inside


@pytest.mark.parametrize("name", ["nobody/nothing", ""])
def test_a_codec_that_is_nowhere_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "model", "processor_config.json", name)
    with pytest.raises(OmniError) as missing:
        audio_tokenizer_folder(folder)
    assert (name or "names no codec") in str(missing.value)
