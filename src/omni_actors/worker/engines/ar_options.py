"""What a deploy file may set on an autoregressive stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_actors.protocol.frames import Hello
from omni_actors.worker.device import kernels_of

OPTIONS: dict[str, Any] = {
    "max_model_len": None,
    "max_tokens": None,
    "block_size": None,
    "kv_blocks": None,
    "kv_memory_mib": 1024,
    "max_batch": 64,
    "step_tokens": 512,
    "prefix_cache": True,
    "sampling": {},
    "fused": True,
}
"""Option → default."""

OPTIONS_DOC: dict[str, str] = {
    "max_model_len": "Longest prompt and answer together, in tokens; by default what the model was made for.",
    "max_tokens": "Most tokens of an answer whose request names no limit; by default what the context leaves.",
    "block_size": "Tokens per block of the KV cache; by default what the device's attention reads best, mostly 16.",
    "kv_blocks": "Blocks of the KV cache; by default as many as kv_memory_mib holds.",
    "kv_memory_mib": "Memory for the KV cache, in MiB; taken as it is used.",
    "max_batch": "Most answers that are written at the same time.",
    "step_tokens": "Most tokens that one step computes: a long prompt is cut into pieces, between which others go on.",
    "prefix_cache": "Whether a prompt that begins like an earlier one takes over what was computed for that.",
    "sampling": "Defaults for temperature, top_p, top_k, min_p and repetition_penalty.",
    "fused": "Whether a known architecture runs by its written-out layers; otherwise by transformers' own.",
}

OPTIONS_TYPE: dict[str, type] = {"max_model_len": int, "max_tokens": int, "block_size": int, "kv_blocks": int}
"""Of those whose default is ``None``."""

OPTIONS_LEAST: dict[str, float] = dict.fromkeys(
    ("max_model_len", "max_tokens", "block_size", "kv_blocks", "kv_memory_mib", "max_batch", "step_tokens"), 1
)
"""The least value of those that are numbers: with less, nothing would ever run."""

DEFAULT_MAX_REQUESTS = 256
"""Requests in the engine at once (``limits["max_requests"]``); one more is refused with 429."""


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
    """Half of a split stage (:mod:`omni_actors.pipelines.disaggregate`), ``prefill`` or ``decode``; empty for both."""

    @classmethod
    def of(cls, hello: Hello) -> EngineOptions:
        options = OPTIONS | hello.options
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
            max_requests=hello.limits.get("max_requests", DEFAULT_MAX_REQUESTS),
            role=options.get("role", ""),
        )

    def blocks(self, token_bytes: int) -> int:
        """Blocks of the KV cache, for a model that keeps so many bytes per token."""
        if self.kv_blocks is not None:
            return self.kv_blocks
        return max(1, int(self.kv_memory_mib * (1 << 20)) // (token_bytes * self.block_size))


def _best_block_size(hello: Hello) -> int:
    """What the device's attention reads best."""
    import torch  # not above: the serving process reads the options, and no torch

    return kernels_of(hello).block_size(getattr(torch, hello.dtype))
