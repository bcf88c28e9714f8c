"""The sizes of a text decoder from its config, which parallel degrees must divide. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_actors.pipelines.strategy import Network


def read_config(folder: Path) -> dict[str, Any]:
    """Return the folder's ``config.json``."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def text_network(config: Mapping[str, Any], why_not: Mapping[str, str] | None = None) -> Network:
    """Return the sizes from a text decoder's config. ``why_not`` names the axes along which the family's code does not
    split the decoder. Raises ``KeyError`` for a config without sizes."""
    heads = int(config["num_attention_heads"])
    experts = int(config.get("num_experts") or 0)
    width = "shared_expert_intermediate_size" if experts else "intermediate_size"
    return Network(
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        inner=(int(config[width]),) if config.get(width) else (),
        experts=experts,
        expert_inner=int(config["moe_intermediate_size"]) if experts else 0,
        why_not=tuple((why_not or {}).items()),
    )
