"""torch_npu, as far as the runtime uses it: its operators by what the documentation says they compute.

What the documentation does not allow raises, as on the device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from tests.platforms.fake_vendors.host_device import HostModule, install, install_collectives, record

from . import profiler as profiler

SIXTEEN = (torch.float16, torch.bfloat16)


class _Npu(HostModule):
    config = SimpleNamespace(allow_internal_format=False)

    def get_soc_version(self) -> int:
        return 222

    def get_device_name(self, device: Any = None) -> str:
        return "Ascend910B3"

    def set_compile_mode(self, jit_compile: bool = True) -> None:
        record(f"npu.set_compile_mode(jit_compile={jit_compile})")

    def is_bf16_supported(self) -> bool:
        return True


npu = _Npu("npu")
install("npu", npu)
install_collectives("hccl", "npu")


def npu_format_cast(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
    record(f"npu_format_cast({acl_format})")
    if not npu.config.allow_internal_format:
        raise RuntimeError("internal formats are not allowed")
    if tensor.dtype not in SIXTEEN:
        raise RuntimeError(f"format {acl_format} is not for {tensor.dtype}")
    return tensor.clone()


def npu_swiglu(tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
    record("npu_swiglu")
    gate, up = tensor.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def npu_grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    group_list: torch.Tensor,
    split_item: int = 0,
    group_type: int = -1,
    group_list_type: int = 0,
) -> list[torch.Tensor]:
    record("npu_grouped_matmul")
    (rows,), (weights,) = x, weight
    if rows.dtype not in SIXTEEN or group_list.dtype != torch.int64 or (split_item, group_type) != (2, 0):
        raise RuntimeError("not as documented")
    counts = group_list if group_list_type == 1 else group_list.diff(prepend=group_list.new_zeros(1))
    parts = rows.split(counts.tolist())
    return [torch.cat([part @ matrix for part, matrix in zip(parts, weights, strict=True)])]


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    scale: float = 1.0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """BNSD; keys of a paged cache are [blocks, heads, block_size, head_dim]."""
    record(f"npu_fused_infer_attention_score({'paged' if block_table is not None else 'prompt'})")
    batch, heads, count, head_dim = query.shape
    if input_layout != "BNSD" or query.dtype not in SIXTEEN or heads != num_heads or head_dim > 512:
        raise RuntimeError("not as documented")
    if not all(it.is_contiguous() for it in (query, key, value)) or key.shape != value.shape:
        raise RuntimeError("not contiguous, or keys of another shape than values")
    if block_table is None:
        if sparse_mode != 3 or atten_mask is None or atten_mask.shape != (2048, 2048) or head_dim % 16:
            raise RuntimeError("not as documented")
        length = key.shape[2]
        seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        return _attend(query, key, value, seen.to(query.device), scale), query
    if count != 1 or block_size != key.shape[2] or block_size % 16 or not 0 < block_size <= 512:
        raise RuntimeError("not as documented")
    assert actual_seq_lengths_kv is not None
    if block_table.dtype != torch.int32 or len(actual_seq_lengths_kv) != batch:
        raise RuntimeError("not as documented")
    rows = []
    for row, blocks, length in zip(query, block_table.tolist(), actual_seq_lengths_kv, strict=True):
        used = torch.tensor(blocks[: -(-length // block_size)], device=query.device)
        k, v = (it[used].transpose(0, 1).flatten(1, 2)[None, :, :length] for it in (key, value))
        rows.append(_attend(row[None], k, v, None, scale))
    return torch.cat(rows), query


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None, scale: float
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    scores = (query @ key.repeat_interleave(groups, 1).transpose(2, 3)) * scale
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value.repeat_interleave(groups, 1)).contiguous()


def npu_fusion_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """transformers imports it; no engine of ours calls it."""
    raise RuntimeError("not expected")
