"""A part of a checkpoint, loaded alone, is what the whole checkpoint holds there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3MoeModel

from omni_actors.models.common.load import load_part, read_weights, stack_experts
from omni_actors.protocol.errors import OmniError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        moe_intermediate_size=8,
        num_experts=3,
        num_experts_per_tok=2,
    )
    return Qwen3MoeForCausalLM(config).eval()


@pytest.fixture(params=["one file", "shards"])
def folder(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path, max_shard_size="2KB" if request.param == "shards" else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (request.param == "shards")
    return tmp_path


def test_a_part_has_the_weights_of_the_whole(folder: Path, model: Any) -> None:
    part = load_part(Qwen3MoeModel, model.config, folder, "model.", torch.float32, CPU)
    expected = model.model.state_dict()
    assert part.state_dict().keys() == expected.keys()
    for name, weight in part.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(part(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
    assert not part.training
    assert not any(parameter.requires_grad for parameter in part.parameters())


def test_the_dtype_is_the_one_asked_for(folder: Path, model: Any) -> None:
    part = load_part(Qwen3MoeModel, model.config, folder, "model.", torch.bfloat16, CPU)
    assert {parameter.dtype for parameter in part.parameters()} == {torch.bfloat16}


def test_only_the_weights_of_the_part_are_read(folder: Path) -> None:
    assert set(read_weights(folder, "lm_head.")) == {"weight"}
    assert len(read_weights(folder, "model.layers.1.")) == len(read_weights(folder, "model.layers.0.")) > 3


def test_a_missing_weight_is_named(tmp_path: Path, model: Any) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(OmniError, match=r"model\.norm\.weight"):
        load_part(Qwen3MoeModel, model.config, tmp_path, "model.", torch.float32, CPU)


def test_a_misshapen_weight_is_named(tmp_path: Path, model: Any) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(OmniError, match=r"model\.norm\.weight"):
        load_part(Qwen3MoeModel, model.config, tmp_path, "model.", torch.float32, CPU)


def test_a_lost_expert_is_named() -> None:
    one = {f"mlp.experts.1.{name}_proj.weight": torch.ones(2, 2) for name in ("gate", "up", "down")}
    with pytest.raises(OmniError, match=r"mlp\.experts lacks"):
        stack_experts(one)


@pytest.mark.parametrize("prefix", ["talker.", "model.layers.9."])
def test_a_part_that_is_not_there_is_an_error(folder: Path, model: Any, prefix: str) -> None:
    with pytest.raises(OmniError, match="no weights"):
        load_part(Qwen3MoeModel, model.config, folder, prefix, torch.float32, CPU)


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OmniError, match=r"model\.safetensors"):
        read_weights(tmp_path, "")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * 64, lambda data: b""])
def test_a_damaged_file_is_named(tmp_path: Path, model: Any, damage: Callable[[bytes], bytes]) -> None:
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(OmniError, match=r"model\.safetensors cannot be read"):
        read_weights(tmp_path, "")


def test_a_lost_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a.weight": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OmniError, match="model-00001"):
        read_weights(tmp_path, "a.")
