"""The options of a stage that vLLM computes, and the environment of its worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import MAX_REQUESTS
from omni_actors.protocol.options import Option, filled

OPTIONS: dict[str, Option] = {
    "max_model_len": Option(
        None,
        "Most tokens of prompt and answer together; by default the model's own context length, as far as "
        "the KV cache holds it.",
        type=int,
        least=1,
    ),
    "max_tokens": Option(
        None,
        "Most tokens of an answer whose request names no limit; by default what the context length leaves.",
        type=int,
        least=1,
    ),
    "block_size": Option(
        None, "Tokens per block of the KV cache; by default what vLLM chooses on this platform.", type=int, least=1
    ),
    "kv_blocks": Option(
        None,
        "Blocks of the KV cache; by default as many as kv_memory_mib holds.",
        type=int,
        least=1,
        aliases=("num_gpu_blocks_override",),
    ),
    "kv_memory_mib": Option(
        1024, "Memory for the KV cache in MiB; null for the free memory that vLLM measures.", type=int, least=1
    ),
    "max_batch": Option(128, "Most sequences that are computed at the same time.", least=1, aliases=("max_num_seqs",)),
    "step_tokens": Option(
        None,
        "Most tokens that one step computes; by default what vLLM chooses on this platform.",
        type=int,
        least=1,
        aliases=("max_num_batched_tokens",),
    ),
    "prefix_cache": Option(
        True,
        "Whether a prompt reuses the KV cache of an earlier prompt with the same beginning.",
        aliases=("enable_prefix_caching",),
    ),
    "sampling": Option({}, "Defaults for temperature, top_p, top_k, min_p and repetition_penalty."),
    "loras": Option({}, "LoRA adapters, as name: folder. A request uses an adapter by naming it as its model."),
    "kv_events": Option(
        False,
        "Whether the worker tracks which blocks of prompts are cached (counters, and the query kv_blocks).",
    ),
    "arguments": Option({}, "Further arguments of vLLM's engine, by their own names (enforce_eager, quantization, …)."),
}
"""The options of every stage that vLLM computes, by name."""

ENVIRONMENT: dict[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_LOG_STATS_INTERVAL": "3600",
}
"""The environment of the worker: its one thread steps the engine core, and its logs are the worker's logs."""

OWNED: Mapping[str, str] = {
    "model": "the model",
    "tokenizer": "the model",
    "dtype": "dtype",
    "max_model_len": "options.max_model_len",
    "block_size": "options.block_size",
    "num_gpu_blocks_override": "options.kv_blocks",
    "kv_cache_memory_bytes": "options.kv_memory_mib",
    "max_num_seqs": "options.max_batch",
    "max_num_batched_tokens": "options.step_tokens",
    "enable_prefix_caching": "options.prefix_cache",
    "enable_lora": "options.loras",
    "kv_events_config": "options.kv_events",
    "tensor_parallel_size": "strategy.tensor",
    "pipeline_parallel_size": "strategy.pipeline",
    "enable_expert_parallel": "strategy.expert",
    "data_parallel_size": "replicas",
    "disable_log_stats": "nothing: the worker has its own counters",
    "generation_config": "sampling",
    "max_logprobs": "nothing: it is the API's",
    "logits_processors": "nothing",
}
"""The place where each argument of vLLM's engine is set, for arguments that ``engine_args`` may not set."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """The options and limits of one stage."""

    max_model_len: int | None
    max_tokens: int | None
    block_size: int | None
    kv_blocks: int | None
    kv_memory_mib: int | None
    max_batch: int
    step_tokens: int | None
    prefix_cache: bool
    sampling: Mapping[str, Any]
    loras: Mapping[str, str]
    kv_events: bool
    arguments: Mapping[str, Any]
    max_requests: int

    @classmethod
    def of(cls, hello: Hello) -> VllmOptions:
        options = filled(OPTIONS, {name: value for name, value in hello.options.items() if name in OPTIONS})
        return cls(**options, max_requests=hello.limits.get("max_requests", MAX_REQUESTS.default))
