"""Rotary embedding: tables, and angles where no table reaches."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2_5OmniTextConfig, Qwen3OmniMoeTextConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniRotaryEmbedding
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextRotaryEmbedding

from omni_actors.models.common.rotary import Rotary, interleaved_axes, sectioned_axes

LENGTH = 4096

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}


def interleaved(dtype: torch.dtype, length: int) -> Rotary:
    config = Qwen3OmniMoeTextConfig(hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=ROPE)
    module = Qwen3OmniMoeThinkerTextRotaryEmbedding(config)
    return Rotary(module, length, dtype, torch.device("cpu"), interleaved_axes(ROPE["mrope_section"], 64))  # type: ignore[arg-type]


def sectioned(dtype: torch.dtype, length: int) -> Rotary:
    config = Qwen2_5OmniTextConfig(hidden_size=256, num_attention_heads=4, rope_parameters=ROPE)
    module = Qwen2_5OmniRotaryEmbedding(config)
    return Rotary(module, length, dtype, torch.device("cpu"), sectioned_axes(ROPE["mrope_section"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("made", [interleaved, sectioned])
def test_a_position_has_the_same_angles_with_and_without_a_table(made: object, dtype: torch.dtype) -> None:
    assert callable(made)
    table, short = made(dtype, LENGTH), made(dtype, 8)
    places = torch.arange(0, LENGTH, 7)
    expected = table.at(places)
    for positions in (places.float(), places.float().repeat(3, 1)):
        found = short.at(positions)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    moved = places.float().repeat(3, 1)
    moved[1] += 1
    assert not torch.equal(short.at(moved)[0], expected[0])
