"""In a process of its own: open one vendor's runtime, compute with what it chooses, and again without each of it.

``python -m tests.platforms.fake_vendors.exercise VENDOR`` prints what it saw as JSON; with the vendor's packages on the
path, and nothing else different from a worker.
"""

from __future__ import annotations

import dataclasses
import json
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from omni_actors.platforms.platform import default_options
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello

GENERATION = "omni_actors.worker.engines.oneshot:GenerationEngine"
VENDORS_OWN = ("torch_npu", "torch_musa", "torchada", "mate", "amdsmi", "intel_extension_for_pytorch", "triton")


def main(vendor: str) -> dict[str, Any]:
    from tests.platforms.fake_vendors import platforms

    platform = getattr(platforms, f"Fake{vendor.capitalize()}")()
    seen: dict[str, Any] = {"early": [name for name in ("torch", *VENDORS_OWN) if name in sys.modules]}

    from omni_actors.worker.device import runtime_of

    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="stage",
        replica=0,
        incarnation=1,
        engine="",
        adapter="",
        device=platform.worker_device(f"{vendor}:0"),
        platform=f"{platforms.__name__}:{type(platform).__name__}",
        platform_options={**default_options(platform), **({"nz": True} if vendor == "ascend" else {})},
    )
    seen["imported"] = [name for name in VENDORS_OWN if name in sys.modules]
    with recorded() as calls:
        runtime = runtime_of(hello)
    seen["opened"] = sorted(calls)
    seen["patches"] = [patch.name for patch in runtime.patches]
    capability, memory = runtime.capability(), runtime.memory()
    seen["capability"] = [capability.name, sorted(capability.features)]
    seen["memory"] = dataclasses.asdict(memory)
    seen["device"] = str(runtime.torch_device)
    seen |= compute(runtime)
    seen["attention"] = attention(runtime)
    seen["drawn"] = drawn(runtime)
    seen["engines"] = {name: prepared(hello, name) for name in (platform.engines["generation"], GENERATION)}
    return seen


@contextmanager
def recorded() -> Iterator[Counter[str]]:
    """What is called inside, and how often."""
    from tests.platforms.fake_vendors import host_device

    calls = Counter[str]()
    host_device.record.listeners.append(calls)
    try:
        yield calls
    finally:
        host_device.record.listeners.remove(calls)


def heard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's own that is recorded."""
    from tests.platforms.fake_vendors import host_device

    def call(*args: Any, **kwargs: Any) -> Any:
        host_device.record(name)
        return function(*args, **kwargs)

    return call


def prepared(hello: Hello, engine: str) -> list[str]:
    """What an engine of one-shot models does to the modules of its adapter when it loads them."""
    from tests.platforms.fake_vendors import one_shot

    hello = msgspec.structs.replace(hello, engine=engine, adapter=f"{one_shot.__name__}:Adapter", dtype="float16")
    with recorded() as calls:
        pkgutil.resolve_name(engine)(hello).load(lambda text, fraction: None)
    return sorted(calls)


def compute(runtime: Any) -> dict[str, Any]:
    """A network with experts over a paged cache in 16 bits: logits on the device against the host's, what was called,
    and what was not once each hook is plain torch's."""
    import torch
    from tests.worker.engines import tiny_models

    from omni_actors.models.causal_lm.fused import FusedDecoder
    from omni_actors.platforms.runtime.kernels import Kernels
    from omni_actors.worker.engines.autoregressive.runner import ModelRunner
    from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence

    blocks, size = 8, 16
    shape = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}

    def logits(device: torch.device, kernels: Kernels) -> torch.Tensor:
        """Of a long prompt, of the rest of it, and of the tokens behind it: two sequences."""
        model = tiny_models.build("qwen3_moe", **shape).to(torch.bfloat16).to(device)
        runner = ModelRunner(FusedDecoder(model, tiny_models.CONTEXT, kernels), blocks, size, kernels)
        first = Sequence(0, 0, 0, [(7 * i) % 250 for i in range(40)], 40, blocks=[0, 2, 4])
        second = Sequence(1, 0, 1, [3, 1, 4, 1, 5], 5, blocks=[1])
        passes = (
            [ScheduledChunk(first, 0, 30, True), ScheduledChunk(second, 0, 4, True)],
            [ScheduledChunk(first, 30, 9, True), ScheduledChunk(second, 4, 1, True)],
            [ScheduledChunk(first, 39, 1, True)],
        )
        return torch.cat([runner.run(chunks).logits.cpu() for chunks in passes])

    expected = logits(torch.device("cpu"), Kernels())
    for name in ("scaled_dot_product_attention", "grouped_mm"):
        setattr(torch.nn.functional, name, heard(name, getattr(torch.nn.functional, name)))
    device, chosen, plain = runtime.torch_device, runtime.kernels, Kernels()
    logits(device, chosen)  # what is tried before it is chosen is tried once
    with recorded() as calls:
        found = logits(device, chosen)
    seen: dict[str, Any] = {
        "calls": sorted(calls),
        "error": float((found - expected).abs().max() / expected.abs().max()),
        "spread": float((expected[0] - expected[-1]).abs().max() / expected.abs().max()),
        "without": {},
    }
    for hook in ("linear", "experts", "paged_decode", "prompt_attention", "fused_decode_limit"):
        with recorded() as left:
            logits(device, dataclasses.replace(chosen, **{hook: getattr(plain, hook)}))
        seen["without"][hook] = sorted(calls - left)
    return seen


def attention(runtime: Any) -> float:
    """The greatest difference between what the device's attention gives and plain torch's, over windows, soft caps,
    groups of heads and sizes of blocks; in float16, of numbers about one."""
    import torch

    from omni_actors.platforms.runtime.kernels import CacheLayout, paged_decode

    device, dtype, worst = runtime.torch_device, torch.float16, [0.0]

    def compare(found: torch.Tensor, expected: torch.Tensor) -> None:
        worst.append(float((found.cpu().float() - expected.float()).abs().max()))

    torch.manual_seed(0)
    for heads, kv_heads, head_dim, size in ((4, 2, 16, 16), (6, 6, 32, 128), (8, 1, 64, 32)):
        layout = CacheLayout(kv_heads, head_dim, size, dtype)
        decode, prompt = runtime.kernels.paged_decode(layout), runtime.kernels.prompt_attention(layout)
        cache, query = (
            torch.randn(*shape).to(dtype) for shape in ((9, 2 * kv_heads, size, head_dim), (3, heads, head_dim))
        )
        table = torch.tensor([[5, 2, 7], [1, 0, 0], [8, 0, 0]], dtype=torch.int32)
        lengths = torch.tensor([2 * size + 3, 1, size], dtype=torch.int32)
        there = [it.to(device) for it in (query, cache, table, lengths)]
        for window in (None, 5, 1 << 20):
            for softcap in (None, 2.0):
                if decode is None:
                    continue
                q, both, blocks, counts = there
                halves = both[:, :kv_heads], both[:, kv_heads:]
                found = decode(q, *halves, blocks, counts, head_dim**-0.5, window, softcap)
                halves = cache[:, :kv_heads], cache[:, kv_heads:]
                compare(found, paged_decode(query, *halves, table, lengths, head_dim**-0.5, window, softcap))
            if prompt is None:
                continue
            keys = torch.randn(2, kv_heads, 2 * size, head_dim).to(dtype)
            asked = torch.randn(size, heads, head_dim).to(dtype)
            found = prompt(asked.to(device), *keys.to(device), head_dim**-0.5, window)
            last = torch.arange(size, 2 * size)[:, None]
            place = torch.arange(2 * size)[None]
            mask = (place <= last) & (place > last - (window or 1 << 20))
            scores = (
                torch.einsum("qhd,hkd->hqk", asked, keys[0].repeat_interleave(heads // kv_heads, 0)) * head_dim**-0.5
            )
            weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
            compare(found, torch.einsum("hqk,hkd->qhd", weights, keys[1].repeat_interleave(heads // kv_heads, 0)))
    return max(worst)


def drawn(runtime: Any) -> dict[str, Any]:
    """Tokens that are drawn of logits on the device and on the host, and whether the device was asked for float64."""
    import torch

    from omni_actors.platforms.runtime.kernels import Kernels
    from omni_actors.worker.engines.autoregressive.sampling import SamplingParams, SamplingState, sample

    asked: list[torch.device] = []
    double = torch.Tensor.double

    def heard_double(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor.device)
        return double(tensor)

    def tokens(device: torch.device, kernels: Kernels) -> list[int]:
        logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(1)).to(device)
        settings = [(0, 1.0), (0, 0.9), (20, 1.0), (5, 0.8), (0, 1.0), (0, 0.5)]
        choosing = [SamplingParams(top_k=k, top_p=p, logit_bias={}, seed=i) for i, (k, p) in enumerate(settings)]
        return sample(logits, [SamplingState(it, stage="llm") for it in choosing], lambda token: b"", kernels).token_ids

    expected = tokens(torch.device("cpu"), Kernels())
    with patch.object(torch.Tensor, "double", heard_double):
        found = tokens(runtime.torch_device, runtime.kernels)
    assert asked
    return {"here": found, "on the host": expected, "float64": any(it.type != "cpu" for it in asked)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
