"""Attention that a platform has a kernel for is tried against plain torch before it is chosen, on every platform."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from omni_actors.platforms.ascend.kernels import kernels as ascend_kernels
from omni_actors.platforms.musa.kernels import kernels as musa_kernels
from omni_actors.platforms.rocm.kernels import kernels as rocm_kernels
from omni_actors.platforms.runtime import Capability, kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels

CPU = torch.device("cpu")
LAYOUT = CacheLayout(kv_heads=2, head_dim=16, block_size=16, dtype=torch.bfloat16)

CHOICES: dict[str, tuple[str, str, Callable[[], Kernels]]] = {
    "Triton": (
        "omni_actors.platforms.runtime.triton_attention",
        "paged_decode",
        lambda: rocm_kernels(Capability("gfx942"), CPU, triton=True),
    ),
    "mate": ("mate", "flash_attn_with_kvcache", lambda: musa_kernels((3, 1), CPU, mate=True)),
    "CANN": ("torch_npu", "npu_fused_infer_attention_score", lambda: ascend_kernels(CPU, nz_weights=False)),
}
"""Kernel → the module and function that bring it, and what chooses it."""


def raises(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no such instruction")


def wrong(*args: Any, **kwargs: Any) -> Any:
    """Of the right shape, and nothing else: what the query was."""
    return (args[0], args[0]) if "num_heads" in kwargs else args[0]


def no_numbers(*args: Any, **kwargs: Any) -> Any:
    found = torch.full_like(args[0], torch.nan)
    return (found, found) if "num_heads" in kwargs else found


@pytest.fixture(params=sorted(CHOICES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def chosen(name: str, compute: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Kernels:
    module, function, choose = CHOICES[name]
    stand_in = ModuleType(module)
    setattr(stand_in, function, compute)
    monkeypatch.setitem(sys.modules, module, stand_in)
    return choose()


@pytest.mark.parametrize(
    ("compute", "said"), [(raises, "no such instruction"), (wrong, "its error is"), (no_numbers, "its error is")]
)
def test_a_kernel_that_raises_or_disagrees_is_left_out_and_that_is_said(
    name: str,
    compute: Callable[..., Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = chosen(name, compute, monkeypatch)
    kinds = [("decode", found.paged_decode), ("prompt", found.prompt_attention)]
    for kind, choose in kinds if name == "CANN" else kinds[:1]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert choose(LAYOUT) is None
            assert choose(LAYOUT) is None
        (line,) = (it.getMessage() for it in caplog.records)
        assert f"{kind} attention '{name}' is not used: " in line
        assert said in line


def test_a_kernel_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omni_actors.platforms.runtime.triton_attention", None)
    assert rocm_kernels(Capability("gfx942"), CPU, triton=True).paged_decode(LAYOUT) is None


def test_the_first_that_agrees_is_chosen() -> None:
    right = plain.paged_decode
    assert (
        kernel_validation.choose_decode(
            LAYOUT, CPU, [("a", lambda: wrong), ("b", lambda: right), ("c", lambda: raises)]
        )
        is right
    )
    assert kernel_validation.choose_decode(LAYOUT, CPU, []) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("off", [0, 1, -1])
def test_a_window_that_is_off_by_one_is_seen(dtype: torch.dtype, off: int) -> None:
    layout = CacheLayout(kv_heads=2, head_dim=64, block_size=16, dtype=dtype)

    def decode(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        shifted = None if window is None else window + off
        return plain.paged_decode(query, keys, values, table, lengths, scale, shifted, softcap)

    def prompt(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None
    ) -> torch.Tensor:
        return plain.prompt_attention(query, keys, values, scale, None if window is None else window + off)

    assert (kernel_validation.decode_error(layout, CPU, decode) <= 1) is (off == 0)
    assert (kernel_validation.prompt_error(layout, CPU, prompt) <= 1) is (off == 0)
