"""A tiny Idefics3 (SmolVLM's kind) with random weights, as a folder that looks like a downloaded one: of other pictures
it says other things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.worker.engines.tiny_models import EOS, tokenizer
from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

SIDE, PATCH, MERGED = 56, 14, 2
IMAGE_TOKENS = (SIDE // PATCH // MERGED) ** 2
"""Of a tile of a picture; around them are marks."""

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def save(folder: Path) -> None:
    words = tokenizer()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    marks = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tiles]
    words.add_special_tokens({"additional_special_tokens": marks})
    words.chat_template = TEMPLATE
    shape: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 160}
    text = {
        "model_type": "llama",
        "vocab_size": len(words),
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 32,  # vLLM's attention on the CPU has none of 16
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    eyes = {"num_hidden_layers": 2, "image_size": SIDE, "patch_size": PATCH}
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(
        Idefics3Config(
            vision_config=eyes | shape,
            text_config=text | shape,
            image_token_id=words.convert_tokens_to_ids("<image>"),
            scale_factor=MERGED,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # so large that what it says depends on all that it was told and shown
                weight.normal_(0.0, 1.5 / weight[0].numel() ** 0.5)
    model.save_pretrained(folder)
    longest = {"longest_edge": SIDE}
    pictures = Idefics3ImageProcessorPil(size={"longest_edge": 2 * SIDE}, max_image_size=longest)
    Idefics3Processor(
        image_processor=pictures, tokenizer=words, image_seq_len=IMAGE_TOKENS, chat_template=TEMPLATE
    ).save_pretrained(folder)
