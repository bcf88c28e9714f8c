"""A quantized checkpoint is refused by name where its weights would be read without their scales."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.worker.engines import tiny_models

from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.planning.quantization import check_quantization, method_of
from omni_actors.platforms import CpuPlatform

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def folder(path: Path, config: Mapping[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model_type": "qwen3"}, None),
        ({"quantization_config": FP8}, "fp8"),
        ({"thinker_config": {"text_config": {"quantization_config": {"quant_method": "gptq"}}}}, "gptq"),
        ({"compression_config": {"format": "pack-quantized"}}, "compressed-tensors"),
        ({"quantization_config": None}, None),
    ],
)
def test_how_weights_are_quantized_is_read_of_the_configuration(
    tmp_path: Path, config: dict[str, Any], method: str | None
) -> None:
    assert method_of(folder(tmp_path, config)) == method


def test_what_modelopt_did_lies_beside_it(tmp_path: Path) -> None:
    folder(tmp_path, {}).joinpath("hf_quant_config.json").write_text("{}")
    assert method_of(tmp_path) == "modelopt"


def test_no_configuration_is_no_quantization(tmp_path: Path) -> None:
    assert method_of(tmp_path) is None
    (tmp_path / "config.json").write_text("no json")
    assert method_of(tmp_path) is None


def test_a_plan_refuses_it_and_says_what_else_there_is(tmp_path: Path) -> None:
    model = Path(tiny_models.save(tmp_path / "model"))
    resolve(str(model), platform="cpu")
    config = json.loads((model / "config.json").read_text())
    folder(model, config | {"quantization_config": FP8})
    with pytest.raises(PlanError, match=r"stage 'llm': .* are quantized \(fp8\): .* unquantized checkpoint"):
        resolve(str(model), platform="cpu", overrides=("stages.llm.engine=torch",))


class Packed(CpuPlatform):
    name = "packed"
    quantization = {"fp8": ""}


def test_a_platform_says_what_it_can(tmp_path: Path) -> None:
    model = str(folder(tmp_path, {"quantization_config": FP8}))
    check_quantization("llm", "autoregressive", model, Packed())
    folder(tmp_path, {"quantization_config": {"quant_method": "sparse"}})
    with pytest.raises(PlanError, match=r"\(sparse\): platform 'packed' does not know it"):
        check_quantization("llm", "autoregressive", model, Packed())
    check_quantization("llm", "vllm", model, Packed())
    check_quantization("llm", "vendor.engines:Engine", model, Packed())
