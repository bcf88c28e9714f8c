"""What speech families share: loading."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from omni_actors.models.common.speech import load_model
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello

HELLO = Hello(version=PROTOCOL_VERSION, stage="talker", replica=0, incarnation=1, engine="", adapter="")


def said_of_ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages but transformers', which workers keep quiet."""
    return [record.message for record in caplog.records if record.name.startswith("omni_actors")]


def test_weights_that_a_folder_lacks_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    load_model(LlamaForCausalLM, HELLO, tmp_path)
    assert not said_of_ours(caplog)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    load_model(LlamaForCausalLM, HELLO, tmp_path)
    assert said_of_ours(caplog) == [f"{tmp_path}: 1 weights are missing and random now, such as ['model.norm.weight']"]
