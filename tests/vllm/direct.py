"""vLLM by itself: requests as JSON on standard input, answers on standard output. See the fixture ``direct``."""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode
from io import BytesIO
from typing import Any

from PIL import Image


def prompt_of(request: dict[str, Any]) -> dict[str, Any]:
    """``images`` are PNGs in base64."""
    images = [Image.open(BytesIO(b64decode(image))).convert("RGB") for image in request.get("images", ())]
    return {"prompt_token_ids": request["tokens"]} | ({"multi_modal_data": {"image": images}} if images else {})


def main(folder: str) -> None:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    from vllm.lora.request import LoRARequest

    from vllm import LLM, SamplingParams

    requests: list[dict[str, Any]] = json.load(sys.stdin)
    loras = [request.get("lora") for request in requests]
    model = LLM(
        folder,
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
        seed=0,
        enable_lora=any(loras),
        max_loras=2,  # as the engine has it for one, and says why
    )
    made = model.generate(
        [prompt_of(request) for request in requests],
        [SamplingParams(**request["sampling"]) for request in requests],
        use_tqdm=False,
        lora_request=[LoRARequest("it", 1, lora) if lora else None for lora in loras],
    )
    answers = []
    for output in made:
        first = output.outputs[0]
        scores = [entry[token].logprob for entry, token in zip(first.logprobs or [], first.token_ids, strict=False)]
        answers.append({"tokens": list(first.token_ids), "text": first.text, "logprobs": scores})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
