"""What each vendor's workers execute, on a fake device in a process of its own: see ``fake_vendors/exercise.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pkgutil import resolve_name
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.platforms.fake_vendors import HERE
from tests.platforms.fake_vendors.exercise import GENERATION
from tests.worker.engines.ar_driver import hello

from omni_actors.platforms.ascend.engines import in_large_blocks
from omni_actors.platforms.ascend.runtime import AscendRuntime
from omni_actors.platforms.musa.kernels import kernels as musa_kernels
from omni_actors.platforms.musa.runtime import MusaRuntime
from omni_actors.platforms.platform import Fault, PlatformError
from omni_actors.platforms.rocm.kernels import kernels as rocm_kernels
from omni_actors.platforms.rocm.runtime import RocmRuntime
from omni_actors.platforms.runtime import Capability
from omni_actors.platforms.runtime.kernels import CacheLayout, paged_decode
from omni_actors.platforms.runtime.torch_module import ModuleRuntime
from omni_actors.platforms.xpu.engines import blocks_within
from omni_actors.platforms.xpu.kernels import kernels as xpu_kernels
from omni_actors.platforms.xpu.runtime import XpuRuntime
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.decoder import KVShape
from omni_actors.worker.engines.autoregressive.options import EngineOptions
from omni_actors.worker.engines.diffusion import DiffusionEngine
from omni_actors.worker.engines.oneshot import GenerationEngine

pytestmark = pytest.mark.deadline(120)

RUNTIMES: dict[str, type[ModuleRuntime]] = {
    "ascend": AscendRuntime,
    "musa": MusaRuntime,
    "rocm": RocmRuntime,
    "xpu": XpuRuntime,
}


@cache
def process(vendor: str) -> subprocess.CompletedProcess[str]:
    """It takes seconds, so each is made once."""
    path = os.pathsep.join([str(HERE / vendor), "src", "."])
    return subprocess.run(
        [sys.executable, "-m", "tests.platforms.fake_vendors.exercise", vendor],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def exercise(vendor: str) -> dict[str, Any]:
    """What it saw."""
    made = process(vendor)
    assert made.returncode == 0, made.stderr
    seen: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return seen


@pytest.fixture(params=sorted(RUNTIMES))
def vendor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_nothing_of_a_vendor_is_imported_before_its_runtime_opens(vendor: str) -> None:
    seen = exercise(vendor)
    assert seen["early"] == []
    assert seen["imported"] == []


def test_opening_makes_the_device_this_workers_own(vendor: str) -> None:
    opened = {
        "ascend": ["npu.set_compile_mode(jit_compile=False)", "npu.set_device(npu:0)"],
        "musa": ["musa.set_device(musa:0)", "torchada"],
        "rocm": ["cuda.set_device(sim:0)"],
        "xpu": ["xpu.set_device(sim:0)"],
    }
    assert exercise(vendor)["opened"] == opened[vendor]


def test_a_device_says_what_it_can_and_what_it_has(vendor: str) -> None:
    seen = exercise(vendor)
    assert (
        seen["capability"]
        == {
            "ascend": ["Ascend910B3 (A2)", ["bf16"]],
            "musa": ["mp_31", ["bf16"]],
            "rocm": ["gfx942", ["bf16", "fp8"]],
            "xpu": ["a fake Intel GPU", ["bf16", "fused_attention"]],
        }[vendor]
    )
    # amdsmi counts what all processes use, and knows the device by its address.
    total, free = (192 << 30, 142 << 30) if vendor == "rocm" else (8 << 30, 6 << 30)
    assert seen["memory"] == {"total": total, "free": free, "used": 1 << 20, "peak": 2 << 20}


def test_a_network_computes_what_the_processor_does(vendor: str) -> None:
    """In bfloat16, whose steps are 0.4 percent."""
    seen = exercise(vendor)
    assert seen["error"] < 0.03 < 0.3 < seen["spread"]


def test_attention_is_plain_torchs_whatever_the_window_and_the_cap(vendor: str) -> None:
    assert exercise(vendor)["attention"] < 0.01


def test_tokens_are_drawn_as_on_the_host_and_without_float64_where_a_device_has_none(vendor: str) -> None:
    seen = exercise(vendor)["drawn"]
    assert seen["here"] == seen["on the host"]
    assert seen["float64"] == (vendor == "rocm")


HOOKS = ("linear", "experts", "paged_decode", "prompt_attention", "fused_decode_limit")

EXECUTED = {
    # What a hook executes, that is not executed when plain torch is in its place.
    "ascend": {
        "linear": ["npu_format_cast(29)"],
        "experts": ["npu_grouped_matmul", "npu_swiglu"],
        "paged_decode": ["npu_fused_infer_attention_score(paged)"],
        "prompt_attention": ["npu_fused_infer_attention_score(prompt)"],
    },
    "musa": {"paged_decode": ["mate.flash_attn_with_kvcache"]},
    "rocm": {"paged_decode": ["triton._decode"], "experts": ["grouped_mm"]},
    "xpu": {"fused_decode_limit": ["scaled_dot_product_attention"]},
}


def test_each_hook_changes_what_executes(vendor: str) -> None:
    assert exercise(vendor)["without"] == {hook: EXECUTED[vendor].get(hook, []) for hook in HOOKS}


def test_an_engine_prepares_modules_as_its_device_wants_them(vendor: str) -> None:
    engines = exercise(vendor)["engines"]
    assert engines.pop(GENERATION) == []
    assert list(engines.values()) == {
        "ascend": [["npu_format_cast(29)", "npu_format_cast(4)"]],
        "xpu": [["ipex.optimize"]],
    }.get(vendor, [])


def test_patches_have_a_name_and_a_reason(vendor: str) -> None:
    for patch in RUNTIMES[vendor].patches:
        assert patch.name.startswith(vendor)
        assert len(patch.why) > 20
    assert exercise(vendor)["patches"] == [patch.name for patch in RUNTIMES[vendor].patches]


FAULTS: dict[str, tuple[tuple[str, Fault], ...]] = {
    # message → what it means while the device still answers
    "ascend": (
        ("NPU out of memory. Tried to allocate 9.98 GiB (NPU 0; 61.28 GiB total)", Fault.MEMORY),
        ("NPU function error: aclrtMalloc, error code is 207001", Fault.MEMORY),
        ("NPU function error: aclrtSynchronizeStream, error code is 507015", Fault.OTHER),
        ("call aclnnMatmul failed, detail:EZ1001: shape", Fault.OTHER),
        ("UCE ERROR, error code is 507053", Fault.DEVICE),
        ("NPU function error: aclrtSynchronizeDevice, error code is 507010", Fault.DEVICE),
        ("size mismatch", Fault.OTHER),
    ),
    "musa": (
        ("MUSA out of memory. Tried to allocate 896.00 MiB.", Fault.MEMORY),
        ("MUSA error: out of memory", Fault.MEMORY),
        ("MUSA error: MUBLAS_STATUS_ALLOC_FAILED when calling `mublasCreate`", Fault.MEMORY),
        ("MUSA error: an illegal memory access was encountered", Fault.OTHER),
        ("size mismatch", Fault.OTHER),
    ),
    "rocm": (
        ("HIP out of memory. Tried to allocate 2.00 MiB", Fault.MEMORY),
        ("HIP error: out of memory", Fault.MEMORY),
        ("HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate`", Fault.MEMORY),
        ("HIP error: an illegal memory access was encountered", Fault.OTHER),
        ("size mismatch", Fault.OTHER),
    ),
    "xpu": (
        ("XPU out of memory. Tried to allocate 59.61 GiB.", Fault.MEMORY),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", Fault.MEMORY),
        ("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", Fault.MEMORY),
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", Fault.DEVICE),
        ("level_zero backend failed with error: 4 (UR_RESULT_ERROR_INVALID_VALUE)", Fault.OTHER),
        ("size mismatch", Fault.OTHER),
    ),
}


def device(vendor: str, synchronize: Callable[[], None]) -> ModuleRuntime:
    """A runtime whose device is only asked whether it still answers."""
    runtime = RUNTIMES[vendor](f"{vendor}:0", {})
    runtime.module = SimpleNamespace(synchronize=synchronize)
    return runtime


def test_failures_are_told_apart(vendor: str) -> None:
    answering = device(vendor, lambda: None)
    for message, fault in FAULTS[vendor]:
        assert answering.fault(RuntimeError(message)) is fault, message
    assert answering.fault(MemoryError()) is Fault.MEMORY
    assert answering.fault(ValueError(FAULTS[vendor][0][0])) is Fault.OTHER


def test_a_device_that_answers_no_more_is_lost(vendor: str) -> None:
    def gone() -> None:
        raise RuntimeError("again")

    silent = device(vendor, gone)
    asked = [message for message, fault in FAULTS[vendor] if fault is Fault.OTHER and message != "size mismatch"]
    assert asked
    for message in asked:
        assert silent.fault(RuntimeError(message)) is Fault.DEVICE, message
    assert silent.fault(RuntimeError("size mismatch")) is Fault.OTHER
    assert silent.fault(RuntimeError(FAULTS[vendor][0][0])) is Fault.MEMORY


def test_without_its_package_or_device_a_runtime_says_what_to_do(vendor: str) -> None:
    remedies = {"ascend": "install the torch-npu", "musa": "torch_musa", "rocm": "ROCm index", "xpu": "xpu index"}
    with pytest.raises(PlatformError, match=remedies[vendor]):
        RUNTIMES[vendor](f"{vendor}:0", {}).open()


def test_a_platform_names_its_runtime_and_engines(vendor: str) -> None:
    platform = resolve_name(f"omni_actors.platforms.{vendor}:{vendor.capitalize()}Platform")
    assert resolve_name(platform.runtime) is RUNTIMES[vendor]
    assert issubclass(resolve_name(platform.engines["autoregressive"]), AutoregressiveEngine)
    assert issubclass(resolve_name(platform.engines["generation"]), GenerationEngine)
    assert issubclass(resolve_name(platform.engines["diffusion"]), DiffusionEngine)
    assert platform.collectives == {"ascend": "hccl", "musa": "mccl", "rocm": "nccl", "xpu": "xccl"}[vendor]


def test_blocks_of_an_npus_cache_have_what_its_attention_is_made_for() -> None:
    options = EngineOptions.of(hello("", block_size=16, kv_blocks=33))
    larger = in_large_blocks(options)
    assert (larger.block_size, larger.kv_blocks) == (128, 5)
    by_memory = in_large_blocks(EngineOptions.of(hello("", block_size=16, kv_memory_mib=1)))
    assert (by_memory.blocks(token_bytes=64), by_memory.kv_blocks) == (128, None)
    assert in_large_blocks(EngineOptions.of(hello("", block_size=256))).block_size == 256


def test_a_layer_of_an_intel_gpus_cache_stays_within_one_allocation() -> None:
    shape = KVShape(layers=2, kv_heads=4, head_dim=64, dtype=torch.bfloat16)
    block = 2 * 4 * 16 * 64 * 2
    assert blocks_within(10 * block, shape, 16) == 9  # and one that pads
    assert blocks_within(1, shape, 16) == 1


@pytest.mark.parametrize(
    ("version", "option", "chosen"), [(222, False, False), (222, True, True), (202, False, True), (999, False, False)]
)
def test_weights_are_nz_where_it_is_asked_for_and_on_the_310p(version: int, option: bool, chosen: bool) -> None:
    runtime = AscendRuntime("npu:0", {"nz": option})
    runtime.module = SimpleNamespace(get_soc_version=lambda: version)
    assert runtime.nz_weights is chosen


@pytest.mark.parametrize(
    ("architecture", "triton", "size", "chosen"),
    [
        ("gfx942", True, 16, True),
        ("gfx942", False, 16, False),
        ("gfx906", True, 16, False),
        ("gfx1100", True, 24, False),
    ],
)
def test_tritons_attention_is_for_devices_and_blocks_that_it_can(
    architecture: str, triton: bool, size: int, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("triton_attention")
    stand_in.paged_decode = paged_decode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omni_actors.platforms.runtime.triton_attention", stand_in)
    kernels = rocm_kernels(Capability(architecture), torch.device("cpu"), triton)
    found = kernels.paged_decode(CacheLayout(2, 64, size, torch.bfloat16))
    assert (found is not None) is chosen


@pytest.mark.parametrize("features", [frozenset(), frozenset({"fused_attention"})])
def test_the_max_series_has_no_fused_attention(features: frozenset[str]) -> None:
    assert bool(xpu_kernels(Capability("an Intel GPU", features)).fused_decode_limit) is bool(features)


def test_mates_attention_is_for_devices_and_dtypes_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, cpu = CacheLayout(2, 64, 16, torch.bfloat16), torch.device("cpu")
    mate = ModuleType("mate")
    monkeypatch.setitem(sys.modules, "mate", mate)

    def flash_attn_with_kvcache(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **given: Any) -> Any:
        (before, _), query = given["window_size"], query.squeeze(1)
        table, lengths, scale = given["page_table"], given["cache_seqlens"], given["softmax_scale"]
        window = None if before < 0 else before + 1
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        return paged_decode(query, keys, values, table, lengths, scale, window, None).unsqueeze(1)

    mate.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    assert musa_kernels((3, 1), cpu, True).paged_decode(layout) is not None
    assert musa_kernels((2, 2), cpu, True).paged_decode(layout) is None
    assert musa_kernels((3, 1), cpu, False).paged_decode(layout) is None
    assert musa_kernels((3, 1), cpu, True).paged_decode(replace(layout, dtype=torch.float32)) is None
