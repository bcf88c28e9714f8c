"""The usage of pictures in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.protocol.request import MediaChunk, Usage

PIXELS_PER_TOKEN = 256
"""Pixels of one image token: 16 by 16, as in today's large models."""


def tokens_of(picture: MediaChunk) -> int:
    """Return the image tokens of a picture."""
    width, height = int(picture.meta["width"]), int(picture.meta["height"])
    return max(1, width * height // PIXELS_PER_TOKEN)


def usage_of(tokens: int, used: Mapping[str, Usage]) -> dict[str, Any]:
    """Return OpenAI's usage of pictures, with the counts of steps beside it.

    Args:
        tokens: The image tokens of the pictures.
        used: The usage of each stage; empty for a picture whose request still goes on.
    """
    text = sum(it.prompt_tokens for it in used.values())
    made: dict[str, Any] = {
        "input_tokens": text,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": text},
        "output_tokens": tokens,
        "total_tokens": text + tokens,
    }
    if used:
        made["steps"] = sum(it.steps for it in used.values())
        made["skipped_steps"] = sum(it.skipped_steps for it in used.values())
    return made
