"""Damaged files of a model's folder are found before they are loaded, and named with what repairs them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_actors.entrypoints.weights import check_weights
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.weights import intact
from omni_actors.pipelines.weights.hub import checkpoint_of
from omni_actors.pipelines.weights.intact import MARKER, RECORD, damage_of, described, record


def safetensors(size: int = 64) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(size))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two shards, with a part that has a folder of its own."""
    made = tmp_path / "model"
    for name, content in {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
        "model-1.safetensors": safetensors(),
        "model-2.safetensors": safetensors(100),
        "codec/config.json": b"{}",
        "codec/model.safetensors": safetensors(10),
        "codec/consolidated.safetensors": b"another program's",
        "onnx/model.safetensors": b"another program's",
        "notes.json": b"no JSON, and nobody reads it",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    """Another byte at the end, and nothing tells of it: neither size nor time."""
    known = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def found(folder: Path, *, whole: bool = False) -> dict[str, str]:
    return {str(one.path.relative_to(folder)): one.reason for one in damage_of(folder, whole=whole)}


def test_a_whole_folder_has_no_damage(folder: Path) -> None:
    assert found(folder, whole=True) == {}
    assert damage_of(folder / "nowhere") == []


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("model-1.safetensors", truncate, "bytes instead of"),
        ("model-2.safetensors", Path.unlink, "it is missing"),
        ("model-1.safetensors", lambda path: path.write_bytes(b""), "no safetensors header"),
        ("model-1.safetensors", lambda path: path.write_bytes(b"\0" * 200), "no safetensors header"),
        ("model-1.safetensors", lambda path: path.write_bytes(b"\x05\0\0\0\0\0\0\0[[[[[[["), "makes no sense"),
        ("codec/model.safetensors", truncate, "bytes instead of"),
        ("config.json", truncate, "no valid JSON"),
        ("tokenizer.json", lambda path: path.write_bytes(b"[]"), "no JSON object"),
        ("codec/config.json", lambda path: path.write_bytes(b"\xff"), "no valid JSON"),
        ("model.safetensors.index.json", lambda path: path.write_text('{"weight_map": 5}'), "weight_map"),
    ],
)
def test_each_kind_of_damage_is_named(folder: Path, name: str, damage: Callable[[Path], object], reason: str) -> None:
    damage(folder / name)
    said = found(folder)
    assert name in said
    assert reason in said[name]
    message = described(damage_of(folder), folder)
    assert str(folder) in message
    assert str(folder / name) in message
    assert "undamaged copy" in message


def test_the_weights_that_the_configuration_names_are_the_ones_that_count(folder: Path) -> None:
    (folder / "config.json").write_text('{"transformers_weights": "mine.safetensors"}')
    (folder / "mine.safetensors").write_bytes(safetensors())
    (folder / "model-1.safetensors").unlink()
    assert found(folder) == {}
    truncate(folder / "mine.safetensors")
    assert list(found(folder)) == ["mine.safetensors"]


def test_a_record_knows_each_byte(folder: Path) -> None:
    record(folder)
    assert found(folder, whole=True) == {}
    flip(folder / "codec/consolidated.safetensors")
    assert found(folder) == {}  # neither size nor time has changed
    assert list(found(folder, whole=True)) == ["codec/consolidated.safetensors"]
    os.utime(folder / "codec/consolidated.safetensors")
    assert list(found(folder)) == ["codec/consolidated.safetensors"]


def test_a_folder_that_was_copied_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(folder)
    for path in folder.rglob("*.safetensors"):
        os.utime(path, ns=(1, 1))
    read: list[Path] = []
    digest = intact._digest

    def counted(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(intact, "_digest", counted)
    assert damage_of(folder) == []
    assert len(read) == 5
    assert damage_of(folder) == []
    assert len(read) == 5


def test_a_record_of_a_missing_file_and_a_broken_record(folder: Path) -> None:
    record(folder)
    (folder / "notes.json").unlink()
    assert found(folder) == {"notes.json": "it is missing"}
    (folder / RECORD).write_text("{")
    assert list(found(folder)) == [RECORD]


def test_the_command_is_named_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    truncate(folder / "config.json")
    (folder / MARKER).write_text('{"name": "demo/llm"}')
    assert "models pull demo/llm" in described(damage_of(folder), folder)


def hub_snapshot(cache: Path) -> Path:
    """A snapshot as the hub's client keeps it: links to blobs whose names are digests of their content."""
    own = cache / "models--some--thing"
    snapshot = own / "snapshots" / ("c" * 40)
    (own / "blobs").mkdir(parents=True)
    (own / "refs").mkdir()
    (own / "refs/main").write_text("c" * 40)
    snapshot.mkdir(parents=True)
    config = b'{"architectures": ["LlamaForCausalLM"]}'
    blobs = {
        "config.json": (hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest(), config),
        "model.safetensors": (hashlib.sha256(safetensors()).hexdigest(), safetensors()),
    }
    for name, (digest, content) in blobs.items():
        (own / "blobs" / digest).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{digest}")
    return snapshot


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_blobs_of_the_hubs_cache_are_what_their_names_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    snapshot = hub_snapshot(tmp_path)
    assert checkpoint_of(snapshot) == ("some/thing", None)
    assert found(snapshot, whole=True) == {}
    flip((snapshot / name).resolve())
    assert list(found(snapshot)) == [name]
    assert "models pull some/thing" in described(damage_of(snapshot), snapshot)
    if name == "model.safetensors":  # a large one is read only when all are
        monkeypatch.setattr(intact, "SMALL", 60)
        assert found(snapshot) == {}
        assert list(found(snapshot, whole=True)) == [name]


def test_another_revision_is_repaired_by_its_name(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path)
    (tmp_path / "models--some--thing/refs/main").write_text("d" * 40)
    truncate((snapshot / "config.json").resolve())
    assert f"some/thing --revision {'c' * 40}" in described(damage_of(snapshot), snapshot)


def test_a_damaged_folder_is_not_planned_or_not_started(folder: Path) -> None:
    plan = resolve(str(folder), platform="cpu")
    truncate(folder / "model-2.safetensors")
    with pytest.raises(PlanError, match=r"model-2\.safetensors: it has .* bytes instead of") as caught:
        check_weights(plan)
    assert str(folder) in str(caught.value)
    truncate(folder / "config.json")
    with pytest.raises(PlanError, match=r"config\.json: it is no valid JSON"):
        resolve(str(folder), platform="cpu")
