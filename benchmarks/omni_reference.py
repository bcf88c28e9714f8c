"""transformers' own ``generate`` of the omni models, as the reference of our benchmarks. Runs in its own process."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3OmniMoeForConditionalGeneration,
)

CLASSES = {
    "qwen3-omni": Qwen3OmniMoeForConditionalGeneration,
    "qwen2.5-omni": Qwen2_5OmniForConditionalGeneration,
}


def run(path: str) -> None:
    """Do the work that the JSON file at ``path`` describes, and write what was found in its place."""
    work = json.loads(Path(path).read_text())
    torch.set_num_threads(work["threads"])
    model = CLASSES[work["family"]].from_pretrained(work["folder"], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(work["folder"], padding_side="left")
    found = {}
    for batch in work["batches"]:
        answer(model, tokenizer, work, ["Hello."] * batch)
        seconds: list[float] = []
        audio: list[float] = []
        for at in range(0, len(work["texts"]), batch):
            begun = time.perf_counter()
            audio += answer(model, tokenizer, work, work["texts"][at : at + batch])
            seconds.append(time.perf_counter() - begun)
        found[batch] = {"seconds": seconds, "audio_s": audio}
    Path(path).write_text(json.dumps(found))


def answer(model: Any, tokenizer: Any, work: dict[str, Any], texts: Sequence[str]) -> list[float]:
    """Seconds of sound of each answer."""
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in texts
    ]
    inputs = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)
    settings: dict[str, Any] = {
        "thinker_max_new_tokens": work["tokens"],
        "thinker_min_new_tokens": work["tokens"],
        "thinker_do_sample": False,
        "talker_do_sample": False,
        # The last code that it samples is not spoken.
        "talker_max_new_tokens": work["frames"] + 1,
    }
    if work["family"] == "qwen3-omni":
        settings |= {"speaker": work["voice"], "return_audio": True}
    else:
        talker = model.config.talker_config
        settings |= {
            "speaker": work["voice"].capitalize(),
            "talker_eos_token_id": [talker.tts_codec_end_token_id, talker.tts_codec_pad_token_id],
        }
    _, sound = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **settings)
    rows = [sound] if torch.is_tensor(sound) else sound
    return [row.numel() / 24_000 for row in rows]
