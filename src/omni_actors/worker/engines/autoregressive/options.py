"""The options of an autoregressive stage, for a deploy file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import MAX_REQUESTS
from omni_actors.protocol.options import Option, filled
from omni_actors.worker.device import kernels_of

OPTIONS: dict[str, Option] = {
    "max_model_len": Option(
        None,
        "Most tokens of prompt and answer together; by default the model's own context length.",
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
        None,
        "Tokens per block of the KV cache; by default what suits the device's attention kernels, mostly 16.",
        type=int,
        least=1,
    ),
    "kv_blocks": Option(
        None,
        "Blocks of the KV cache; by default as many as kv_memory_mib holds.",
        type=int,
        least=1,
        aliases=("num_gpu_blocks_override",),
    ),
    "kv_memory_mib": Option(1024, "Memory for the KV cache in MiB; it is allocated as it is used.", least=1),
    "max_batch": Option(64, "Most sequences that are computed at the same time.", least=1, aliases=("max_num_seqs",)),
    "step_tokens": Option(
        512,
        "Most tokens that one step computes; a long prompt is computed in pieces, between which other "
        "requests continue.",
        least=1,
        aliases=("max_num_batched_tokens",),
    ),
    "prefix_cache": Option(
        True,
        "Whether a prompt reuses the KV cache of an earlier prompt with the same beginning.",
        aliases=("enable_prefix_caching",),
    ),
    "sampling": Option({}, "Defaults for temperature, top_p, top_k, min_p and repetition_penalty."),
    "fused": Option(
        True, "Whether a known architecture runs by this project's own layers; otherwise transformers' modules run."
    ),
}
"""The options of every autoregressive stage. A count has a least value of 1: with less, nothing would ever run."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine's part of the options, and its limits."""

    max_tokens: int | None
    block_size: int
    kv_blocks: int | None
    kv_memory_mib: float
    max_batch: int
    step_tokens: int
    prefix_cache: bool
    sampling: Mapping[str, Any]
    max_requests: int
    role: str
    """Half of a split stage (:mod:`omni_actors.pipelines.planning.disaggregate`): ``prefill``, ``decode``, or empty for
    a stage that is not split."""

    @classmethod
    def of(cls, hello: Hello) -> EngineOptions:
        options = filled(OPTIONS, hello.options)
        kv_blocks = options["kv_blocks"]
        block_size = options["block_size"] or _best_block_size(hello)
        max_tokens = options["max_tokens"]
        return cls(
            max_tokens=None if max_tokens is None else int(max_tokens),
            block_size=int(block_size),
            kv_blocks=None if kv_blocks is None else int(kv_blocks),
            kv_memory_mib=float(options["kv_memory_mib"]),
            max_batch=int(options["max_batch"]),
            step_tokens=int(options["step_tokens"]),
            prefix_cache=bool(options["prefix_cache"]),
            sampling=options["sampling"],
            max_requests=hello.limits.get("max_requests", MAX_REQUESTS.default),
            role=options.get("role", ""),
        )

    def blocks(self, token_bytes: int) -> int:
        """Blocks of the KV cache, for a model that keeps so many bytes per token."""
        if self.kv_blocks is not None:
            return self.kv_blocks
        return max(1, int(self.kv_memory_mib * (1 << 20)) // (token_bytes * self.block_size))


def _best_block_size(hello: Hello) -> int:
    """Return the block size that the device's attention reads best."""
    import torch  # not above: the serving process reads the options, and no torch

    return kernels_of(hello).block_size(getattr(torch, hello.dtype))
