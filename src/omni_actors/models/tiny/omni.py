"""Shared parts of the folders of the two omni families: processor settings, a chat template, their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

CHAT_TEMPLATE = """\
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}VISION_START IMAGE VISION_END
{%- elif part.type == 'audio' or 'audio' in part or 'audio_url' in part -%}AUDIO_START AUDIO AUDIO_END
{%- elif part.type == 'video' or 'video' in part -%}VISION_START VIDEO VISION_END
{%- elif 'text' in part -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
DEFAULT_SYSTEM
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ parts(message.content) }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

DEFAULT_SYSTEM = """\
{%- if messages[0].role != 'system' -%}
<|im_start|>system
SYSTEM<|im_end|>
{% endif -%}"""


def chat_template(tokens: dict[str, str], system: str | None) -> str:
    """Return the family's template in Jinja: ChatML, a placeholder token between two marks for each image, audio and
    video.

    `tokens` names the placeholders as the processor's tokenizer does (``image_token``, ``vision_bos_token``, …);
    `system` is the system message of a conversation without one.
    """
    vision = tokens["vision_bos_token"], tokens["vision_eos_token"]
    audio = tokens["audio_bos_token"], tokens["audio_eos_token"]
    filled = (
        CHAT_TEMPLATE.replace("VISION_START IMAGE VISION_END", tokens["image_token"].join(vision))
        .replace("VISION_START VIDEO VISION_END", tokens["video_token"].join(vision))
        .replace("AUDIO_START AUDIO AUDIO_END", tokens["audio_token"].join(audio))
    )
    return filled.replace("DEFAULT_SYSTEM", DEFAULT_SYSTEM.replace("SYSTEM", system) if system else "")


def preprocessor(processor: str, patch_size: int, mean: list[float], std: list[float]) -> dict[str, Any]:
    """Return ``preprocessor_config.json`` as in the families' checkpoints: image and audio settings in one file.

    The smallest and the largest image are much smaller than the checkpoints', so that a tiny model stays quick: 4 to 64
    tokens an image.
    """
    token = (2 * patch_size) ** 2
    return {
        "processor_class": processor,
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": mean,
        "image_std": std,
        "min_pixels": 4 * token,
        "max_pixels": 64 * token,
        "patch_size": patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 300,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "dither": 0.0,
        "return_attention_mask": True,
    }


def save(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str, settings: dict[str, Any]
) -> None:
    """Write the model (config.json with its class, generation_config.json, model.safetensors) and its processor."""
    model.save_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
