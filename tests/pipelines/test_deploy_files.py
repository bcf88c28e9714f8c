"""The deploy files that are shipped: each places a real checkpoint on as many GPUs as its name says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.platforms import machines

from omni_actors.entrypoints.commands.explain import explain
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.platforms.accelerator import Unit
from omni_actors.platforms.cuda import CudaPlatform

FOLDER = Path(__file__).parents[2] / "deploy"
FILES = sorted(FOLDER.glob("*.yaml"))
PAGE = Path(__file__).parents[2] / "docs" / "gpus.md"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither devices nor weights."""
    machines.use(monkeypatch, tmp_path / "machine")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def gpus_of(file: Path) -> int:
    found = re.fullmatch(r".+-(\d)gpu", file.stem)
    assert found is not None
    return int(found[1])


def plan_of(file: Path) -> Plan:
    return resolve(overlay=file)


def test_there_are_files_for_one_two_and_three_gpus() -> None:
    families = {file.stem.rpartition("-")[0] for file in FILES}
    assert families >= {"qwen3-omni", "qwen2.5-omni", "qwen3-tts"}
    assert {(family, n) for family in families for n in (1, 2, 3)} == {
        (file.stem.rpartition("-")[0], gpus_of(file)) for file in FILES
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_gpu_is_used_and_every_stage_is_placed(file: Path) -> None:
    plan = plan_of(file)
    placed = [stage for stage in plan.stages if stage is not plan.media]
    used = {stage.device_of(replica) for stage in placed for replica in range(stage.replicas)}
    assert used == {f"cuda:{index}" for index in range(gpus_of(file))}
    for stage in placed:
        assert plan.provenance[f"stages.{stage.name}.devices"].kind == "overlay"
        assert len(stage.devices) <= stage.replicas
        assert plan.hello(stage.name, 0, 1).device == "cuda:0"
        assert stage.environment_of(0)["CUDA_VISIBLE_DEVICES"] == stage.device.removeprefix("cuda:")
    assert plan.checkpoint in plan.pipeline.checkpoints


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_fits_a_machine_with_that_many(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.has(monkeypatch, CudaPlatform, *[Unit("NVIDIA GPU")] * gpus_of(file))
    assert plan_of(file).platform == "cuda"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_can_be_explained_and_is_on_the_page(file: Path) -> None:
    said = CliRunner().invoke(explain, ["--deploy", str(file), "--json"], catch_exceptions=False)
    assert said.exit_code == 0
    explained = json.loads(said.output)
    assert explained["served_model_name"] == explained["checkpoint"] == plan_of(file).checkpoint
    assert f"deploy/{file.name}" in PAGE.read_text()
