"""transformers' own ``generate`` of the omni models, as the reference of our benchmarks. Runs in its own process."""

from __future__ import annotations

import json
import math
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


PARTS = {
    "thinker": ("thinker", "generate"),
    "talker": ("talker", "generate"),
    "code2wav": ("code2wav", "chunked_decode"),
    "token2wav": ("token2wav", "forward"),
}
"""The calls that ``generate`` is made of, by what the report names them."""

PROBES = 6
"""Texts that each number of threads is tried with."""


def run(path: str) -> None:
    """Do the work described by the JSON file at ``path``, and replace the file's content by the result."""
    work = json.loads(Path(path).read_text())
    model = CLASSES[work["family"]].from_pretrained(work["folder"], dtype=torch.float32).eval().to(work["device"])
    tokenizer = AutoTokenizer.from_pretrained(work["folder"], padding_side="left")

    def timed(texts: Sequence[str]) -> tuple[float, list[float]]:
        begun = time.perf_counter()
        audio = answer(model, tokenizer, work, texts)
        return time.perf_counter() - begun, audio

    tried: dict[int, float] = {}
    for threads in work["threads"]:
        torch.set_num_threads(threads)
        timed(["Hello."])
        best_yet, total = min(tried.values(), default=math.inf), 0.0
        for text in work["texts"][:PROBES]:
            if total < best_yet:  # where cores are busy with others, many threads can be slower by far
                total += timed([text])[0]
        tried[threads] = total
    best = min(tried, key=lambda threads: tried[threads])
    torch.set_num_threads(best)
    spent: dict[str, float] = {}
    for name, (part, call) in PARTS.items():
        if hasattr(model, part):
            clock(getattr(model, part), call, name, spent)
    batches = {}
    for batch in work["batches"]:
        timed(["Hello."] * batch)
        spent.clear()
        made = [timed(work["texts"][at : at + batch]) for at in range(0, len(work["texts"]), batch)]
        batches[batch] = {
            "seconds": [seconds for seconds, _ in made],
            "audio_s": [seconds for _, audio in made for seconds in audio],
            "spent": dict(spent),
        }
    Path(path).write_text(json.dumps({"threads": best, "tried": tried, "batches": batches}))


def clock(part: Any, call: str, name: str, spent: dict[str, float]) -> None:
    """Add up the time of the calls of ``part.call`` under ``name`` in ``spent``."""
    inner = getattr(part, call)

    def measured(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        made = inner(*args, **kwargs)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun
        return made

    setattr(part, call, measured)


def answer(model: Any, tokenizer: Any, work: dict[str, Any], texts: Sequence[str]) -> list[float]:
    """Return the seconds of sound of each answer, which is on the host at the return."""
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in texts
    ]
    inputs = tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
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
    return [row.cpu().numel() / 24_000 for row in rows]
