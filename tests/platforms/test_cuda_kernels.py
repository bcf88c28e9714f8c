"""What an NVIDIA GPU executes: what is chosen by capability, dtype and packages, and that it is called as it is meant.

There is no such GPU here. The packages are stood in for by functions that compute, on the processor, what their
documentation says: so an argument in the wrong place, another order of dimensions or a window that is off by one is
seen. Whether the packages do what they say is seen where there is a GPU, before one is chosen.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.platforms.fake_flash import FlashAttn, by_documentation
from torch.nn.attention import SDPBackend

from omni_actors.platforms.cuda import CudaPlatform, attention
from omni_actors.platforms.cuda.kernels import kernels
from omni_actors.platforms.cuda.runtime import CudaRuntime
from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.rocm.kernels import kernels as on_rocm
from omni_actors.platforms.runtime import Capability, kernel_validation
from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels
from omni_actors.protocol.options import filled

CPU = torch.device("cpu")
SMALL = CacheLayout(kv_heads=2, head_dim=16, block_size=16, dtype=torch.bfloat16)
PAGES = CacheLayout(kv_heads=2, head_dim=16, block_size=256, dtype=torch.bfloat16)
FLOAT32 = CacheLayout(kv_heads=2, head_dim=16, block_size=256, dtype=torch.float32)

AMPERE, HOPPER, TURING = (8, 0), (9, 0), (7, 5)


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """torch's by its documentation, for one token of each sequence."""
    assert enable_gqa == (query.shape[1] != key.shape[2])
    assert cu_seq_q.tolist() == list(range(len(query) + 1))
    assert cu_seq_k is None
    assert (max_q, max_k) == (1, block_table.shape[1] * key.shape[1])
    causal = window_size == (-1, 0)
    return FlashAttn().flash_attn_with_kvcache(
        query[:, None], key, value, seqused_k, block_table, scale, causal, window_size, 0.0
    )[:, 0]


def has(*packages: str) -> Callable[[str], bool]:
    return lambda name: name in packages


def chosen(capability: tuple[int, int], wanted: str = "auto", *packages: str) -> Kernels:
    return kernels(capability, CPU, wanted, has(*packages))


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> FlashAttn:
    made = FlashAttn()
    monkeypatch.setitem(sys.modules, "flash_attn", made)
    return made


def test_flash_attention_reads_the_cache_in_place_where_it_can(flash: FlashAttn) -> None:
    found = chosen(AMPERE, "auto", "flash_attn")
    assert found.block_size(torch.bfloat16) == 256
    assert found.block_size(torch.float32) == 16
    assert found.paged_decode(PAGES) is not None
    assert "flash_attn_with_kvcache" in flash.calls
    assert found.prompt_attention(PAGES) is not None
    assert "flash_attn_func" in flash.calls
    assert found.paged_decode(SMALL) is None, "pages of 16 tokens"
    assert found.paged_decode(FLOAT32) is None


@pytest.mark.parametrize(
    ("capability", "wanted", "packages"),
    [(TURING, "auto", ("flash_attn",)), (AMPERE, "torch", ("flash_attn",)), (AMPERE, "auto", ())],
)
def test_without_it_blocks_are_gathered(
    flash: FlashAttn,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    wanted: str,
    packages: tuple[str, ...],
) -> None:
    monkeypatch.setattr(attention, "torch_reads_tables", lambda: None)
    found = chosen(capability, wanted, *packages)
    assert found.block_size(torch.bfloat16) == 16
    assert found.paged_decode(PAGES) is None
    found.prompt_attention(PAGES)
    assert not flash.calls


def test_torch_brings_flash_attention_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "torch_reads_tables", lambda: varlen_attn)
    assert chosen(AMPERE).paged_decode(PAGES) is not None
    assert chosen(AMPERE).block_size(torch.bfloat16) == 16, "by default blocks are small"
    assert chosen(AMPERE, "flash").block_size(torch.bfloat16) == 256


def test_this_torchs_own_function_takes_the_arguments_it_is_given() -> None:
    found = attention.torch_reads_tables()
    if found is None:
        pytest.skip("this torch's varlen_attn reads no paged cache")
    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):  # it has none for processors
        kernel_validation.decode_error(PAGES, CPU, attention.decode_by_torch(found))


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize(
    "make", [lambda: attention.decode_by_package(FlashAttn()), lambda: attention.decode_by_torch(varlen_attn)]
)
def test_decodes_are_what_plain_torch_computes(
    make: Callable[[], Any], window: int | None, softcap: float | None
) -> None:
    torch.manual_seed(0)
    pool = torch.randn(7, 4, 256, 16, dtype=torch.bfloat16)
    query = torch.randn(3, 6, 16, dtype=torch.bfloat16)
    table = torch.tensor([[4, 1, 6], [2, 0, 0], [5, 3, 0]], dtype=torch.int32)
    given = (table, torch.tensor([700, 9, 257], dtype=torch.int32), 0.25, window, softcap)
    expected = plain.paged_decode(query.float(), pool[:, :2].float(), pool[:, 2:].float(), *given)
    found = make()(query, pool[:, :2], pool[:, 2:], *given)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize("count", [1, 8, 19])
def test_prompts_are_what_plain_torch_computes(window: int | None, count: int) -> None:
    torch.manual_seed(0)
    both = torch.randn(4, 19, 16, dtype=torch.bfloat16)
    query = torch.randn(count, 6, 16, dtype=torch.bfloat16)
    expected = by_documentation(
        query[None].float(), both[:2].transpose(0, 1)[None].float(), both[2:].transpose(0, 1)[None].float(),
        0.25, True, (-1 if window is None else window - 1, 0), 0.0,
    )[0]  # fmt: skip
    for attend in (attention.prompt_by_package(FlashAttn()), attention.prompt_by_backends((SDPBackend.MATH,))):
        found = attend(query, both[:2], both[2:], 0.25, window)
        assert found.shape == query.shape
        torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


def test_backends_are_asked_in_the_order_of_what_the_device_is_good_at() -> None:
    assert attention.backends(HOPPER, torch.bfloat16)[0] is SDPBackend.CUDNN_ATTENTION
    assert attention.backends(AMPERE, torch.float16)[0] is SDPBackend.FLASH_ATTENTION
    assert not attention.backends(HOPPER, torch.float32)
    assert not attention.backends(TURING, torch.float16)


def test_a_kernel_that_disagrees_or_raises_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", FlashAttn(broken=0.5))
    monkeypatch.setattr(attention, "torch_reads_tables", lambda: lambda *args, **kwargs: 1 / 0)
    with caplog.at_level(logging.WARNING):
        assert chosen(AMPERE, "auto", "flash_attn").paged_decode(PAGES) is None
    first, second = (it.getMessage() for it in caplog.records)
    assert "'flash-attn' is not used: its error is" in first
    assert "ZeroDivisionError" in second


def test_a_choice_is_made_once(flash: FlashAttn) -> None:
    found = chosen(AMPERE, "auto", "flash_attn")
    assert found.paged_decode(PAGES) is found.paged_decode(PAGES)
    assert flash.calls.count("flash_attn_with_kvcache") == 2, "with and without a window"


def test_experts_are_grouped_where_that_is_one_kernel() -> None:
    assert chosen(HOPPER).experts is plain.experts_in_groups
    assert chosen(AMPERE).experts is plain.experts
    assert on_rocm(Capability("gfx942"), CPU, triton=False).experts is plain.experts_in_groups


def test_experts_are_grouped_where_grouped_products_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(plain, "grouped_experts", lambda *args: asked.append("grouped"))
    rows, counts = torch.randn(3, 8), torch.tensor([2, 1])
    weights = torch.randn(2, 16, 8), torch.randn(2, 8, 8)
    assert plain.experts_in_groups(rows, counts, *weights).shape == rows.shape
    odd = torch.randn(2, 24, 8).bfloat16(), torch.randn(2, 8, 12).bfloat16()  # rows of 24 bytes
    assert plain.experts_in_groups(rows.bfloat16(), counts, *odd).shape == rows.shape
    assert not asked
    plain.experts_in_groups(rows.bfloat16(), counts, *weights)
    assert asked == ["grouped"]


@pytest.mark.parametrize("inner", [8, 3])
def test_grouped_products_are_those_of_one_expert_after_the_other(inner: int) -> None:
    """Also of rows that they do not take."""
    torch.manual_seed(0)
    weights = torch.randn(3, 2 * inner, 8).bfloat16(), torch.randn(3, 8, inner).bfloat16()
    given = torch.randn(5, 8).bfloat16(), torch.tensor([2, 0, 3])
    torch.testing.assert_close(plain.grouped_experts(*given, *weights), plain.experts(*given, *weights))


def runtime(capability: tuple[int, int] = HOPPER, **options: Any) -> CudaRuntime:
    made = CudaRuntime("cuda:0", filled(CudaPlatform.options, options))
    made.module = SimpleNamespace(get_device_capability=lambda device: capability, CUDAGraph=object)
    return made


def test_the_runtime_says_what_the_device_can() -> None:
    found = runtime(HOPPER).capability()
    assert found.name == "sm_90"
    assert {"bf16", "fp8", "flash"} <= found.features
    assert "fp8" not in runtime(AMPERE).capability().features
    assert "bf16" not in runtime(TURING).capability().features


def test_graphs_are_an_option() -> None:
    assert runtime().graphs() is not None
    assert runtime(graphs=False).graphs() is None


def test_a_torch_without_cuda_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)  # whatever torch is installed here
    with pytest.raises(PlatformError, match="not built for CUDA: install the wheel"):
        runtime().open()
