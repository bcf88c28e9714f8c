"""Kernels of an NPU: weights in the NZ layout, experts as grouped products, and CANN's fused attention where the
results agree with plain torch. The NPU's cores have no float64."""

from __future__ import annotations

import functools

import torch

from omni_actors.platforms.ascend import attention
from omni_actors.platforms.ascend.weights import nz
from omni_actors.platforms.runtime import kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels, Linear, PagedDecode, PromptAttention

_LIST_OF_COUNTS = 1
"""``group_list_type``: the number of rows of each expert, instead of the end of its rows."""

_ONE_OUTPUT = 2
"""``split_item``: the results of the groups, one after the other in one tensor."""

_BY_ROWS = 0
"""``group_type``: the rows of the left side are divided among the groups."""


def kernels(device: torch.device, nz_weights: bool) -> Kernels:
    """Return the kernels of one device. ``nz_weights`` says whether the weights of products get the NZ layout on
    loading."""

    @functools.cache
    def paged_decode(layout: CacheLayout) -> PagedDecode | None:
        return kernel_validation.choose_decode(
            layout, device, [("CANN", attention.FusedDecode)] if attention.decodes(layout) else []
        )

    @functools.cache
    def prompt_attention(layout: CacheLayout) -> PromptAttention | None:
        fused = functools.partial(attention.FusedPrompt, device)
        return kernel_validation.choose_prompt(layout, device, [("CANN", fused)] if attention.prompts(layout) else [])

    return Kernels(
        linear=linear if nz_weights else plain.linear,
        experts=experts,
        paged_decode=paged_decode,
        prompt_attention=prompt_attention,
        draws_on_host=True,
    )


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return the weight in the NZ layout, the matrix unit's own."""
    return plain.linear(nz(weight), bias)


def experts(rows: torch.Tensor, counts: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Compute two grouped products with a fused SwiGLU between; the operators take no float32, so float32 is computed
    one expert at a time."""
    import torch_npu

    if rows.dtype not in (torch.bfloat16, torch.float16):
        return plain.experts(rows, counts, gate_up, down)
    groups = counts.to(torch.int64)

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        outputs = torch_npu.npu_grouped_matmul(
            x=[x],
            weight=[weight.transpose(1, 2)],
            split_item=_ONE_OUTPUT,
            group_list_type=_LIST_OF_COUNTS,
            group_type=_BY_ROWS,
            group_list=groups,
        )
        result: torch.Tensor = outputs[0]
        return result

    return product(torch_npu.npu_swiglu(product(rows, gate_up)), down)
