"""A stage whose weights are damaged does not start, and says which folder and file it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from tests.models.omni.line import CPU, _load
from tests.models.omni_demo.harness import Stage

import omni_actors
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.worker.checks import WarmUpError
from omni_actors.worker.diagnosis import why_not_loaded

NAN = {
    "F32": np.array(np.nan, np.float32).tobytes(),
    "F16": np.array(np.nan, np.float16).tobytes(),
    "BF16": np.array(0x7FC0, np.uint16).tobytes(),
}


def poison(source: Path, folder: Path) -> Path:
    """A copy of a checkpoint in which every weight that is a float is no number."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.rglob("*.safetensors"):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        path.chmod(0o644)
        content = np.memmap(path, np.uint8, "r+", 8 + length)
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in NAN:
                nan = np.frombuffer(NAN[entry["dtype"]], np.uint8)
                first, last = entry["data_offsets"]
                content[first:last] = np.tile(nan, (last - first) // len(nan))
        content.flush()
    return folder


@pytest.mark.parametrize(
    ("family", "stages"),
    [
        ("causal-lm", ["llm"]),
        ("qwen3-asr", ["encoder", "listener"]),
        ("qwen3-omni", ["encoder", "thinker", "talker", "code2wav"]),
        ("qwen2.5-omni", ["token2wav"]),
    ],
)
def test_no_engine_starts_on_weights_that_are_no_numbers(
    family: str, stages: list[str], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = poison(tiny_model(family), tmp_path / "poisoned")
    pipeline = Registry.installed([]).load(family)
    known = {stage.name: stage for stage in pipeline.stages}
    targets = {name: [(edge.stage, edge.port) for edge in pipeline.edges if edge.source == name] for name in known}
    for name in stages:
        with pytest.raises(WarmUpError, match=r"of the warm-up are not finite"):
            _load(known[name], targets[name], folder, {}, CPU)


@pytest.mark.weights
def test_no_stage_of_the_demo_does_either(demo_weights: Path, tmp_path: Path) -> None:
    poison(demo_weights / "asr", tmp_path / "asr")
    (tmp_path / "vad").symlink_to(demo_weights / "vad")
    with pytest.raises(WarmUpError, match="not finite"):
        Stage("asr", tmp_path)


async def test_the_server_is_told_stage_and_folder(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = poison(tiny_model("causal-lm"), tmp_path / "poisoned")
    with pytest.raises(OmniError) as caught:
        async with omni_actors.open_omni(str(folder), platform="cpu"):
            pass
    message = caught.value.info.message
    assert "logits of the warm-up are not finite" in message
    assert str(folder) in message
    assert "llm" in message


def test_files_that_are_damaged_after_the_look_are_named_by_the_worker(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("causal-lm"), folder)
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    stage = Registry.installed([]).load("causal-lm").stages[0]
    with pytest.raises(SafetensorError) as caught:
        _load(stage, [], folder, {}, CPU)
    info = why_not_loaded(hello(folder), caught.value)
    assert f"Weights in {folder} are damaged" in info.message
    assert f"{weights}: it has" in info.message
    assert "undamaged copy" in info.message
    assert str(caught.value) in info.message
    assert info.stage == "llm"


def hello(folder: Path) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION, stage="llm", replica=0, incarnation=1, engine="", adapter="", model=str(folder)
    )


def test_an_exception_about_sound_files_is_left_as_it_is(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("causal-lm")
    assert why_not_loaded(hello(folder), KeyError("x")).message == "KeyError: 'x'"
    info = why_not_loaded(hello(folder), WarmUpError("logits"))
    assert info.stage == "llm"
    assert str(folder) in info.message
    assert "do not compute in" in info.message
