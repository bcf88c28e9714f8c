"""Variables that hide devices, in every odd form: what is left, what a worker gets, and why nothing is left."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platforms import machines

from omni_actors.platforms.accelerator import Accelerator, Inventory, Unit
from omni_actors.platforms.ascend import AscendPlatform
from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.musa import MusaPlatform
from omni_actors.platforms.rocm import RocmPlatform
from omni_actors.platforms.xpu import XpuPlatform

PLATFORMS = (CudaPlatform, RocmPlatform, AscendPlatform, XpuPlatform, MusaPlatform)

TWO = (Unit("A", 1 << 30, "GPU-aaaaaaaa-1"), Unit("B", 2 << 30, "GPU-bbbbbbbb-2"))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.use(monkeypatch, tmp_path)


def shown(platform: Accelerator, variable: str) -> list[str]:
    """What a worker on each of its devices gets."""
    environment = platform.worker_environment
    if not platform.detect():
        return []
    return [environment(device.name, 1, {"tf32": True})[variable] for device in platform.devices()]


def with_two(monkeypatch: pytest.MonkeyPatch, kind: type[Accelerator]) -> Accelerator:
    machines.has(monkeypatch, kind, *TWO)
    return kind()


CUDA = [
    ("1", ["1"]),
    ("1, 0", ["1", "0"]),
    (" 0 ,1 ", ["0", "1"]),
    ("0,5,1", ["0"]),
    ("0,-1,1", ["0"]),
    ("0,,1", ["0"]),
    ("0,0", []),
    ("GPU-b,GPU-b", []),
    ("", []),
    (" ", []),
    (",", []),
    ("-1", []),
    ("NoDevFiles", []),
    ("none", []),
    ("all", []),
    ("2", []),
    ("99999999999999999999", []),
    ("9" * 5000, []),
    ("\u0661", []),  # a digit, though not of ASCII
    ("0x1", []),
    ("+1", []),
    ("1.0", []),
    ("GPU-b", ["GPU-b"]),
    ("GPU-BBBB", ["GPU-BBBB"]),
    ("GPU-bbbbbbbb-2,0", ["GPU-bbbbbbbb-2", "0"]),
    ("GPU-c", []),
    ("GPU-", []),  # both begin so
    ("bbbbbbbb-2", []),
    ("MIG-x", ["MIG-x"]),
    ("MIG-GPU-aaaaaaaa-1/3/0", ["MIG-GPU-aaaaaaaa-1/3/0"]),
]


@pytest.mark.parametrize(("setting", "entries"), CUDA)
def test_cuda(setting: str, entries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    platform = with_two(monkeypatch, CudaPlatform)
    assert shown(platform, "CUDA_VISIBLE_DEVICES") == entries
    found = platform.detect()
    assert found.present
    assert found.usable is bool(entries)
    if not entries:
        assert "CUDA_VISIBLE_DEVICES" in found.reason
        assert "\n" not in found.reason


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "CUDA_VISIBLE_DEVICES='' hides all 2 devices"),
        ("-1", "CUDA_VISIBLE_DEVICES='-1' hides all 2 devices"),
        ("NoDevFiles", "CUDA_VISIBLE_DEVICES='NoDevFiles' hides all 2 devices: 'NoDevFiles' is none of them"),
        ("7,0", "CUDA_VISIBLE_DEVICES='7,0' hides all 2 devices: '7' is none of them"),
        ("1,1", "CUDA_VISIBLE_DEVICES='1,1' names a device twice, so no device is visible"),
        ("0,00", "CUDA_VISIBLE_DEVICES='0,00' names a device twice, so no device is visible"),
        ("1,GPU-b", "CUDA_VISIBLE_DEVICES='1,GPU-b' names a device twice, so no device is visible"),
        ("GPU-a,GPU-aa", "CUDA_VISIBLE_DEVICES='GPU-a,GPU-aa' names a device twice, so no device is visible"),
    ],
)
def test_why_nothing_is_left(setting: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert with_two(monkeypatch, CudaPlatform).detect().reason == said


SLICED = Inventory(
    (
        Unit("H100", 80 << 30, "GPU-a"),
        Unit("H100", 80 << 30, "GPU-b", parts=(Unit("1g", 10 << 30, "MIG-1"), Unit("2g", 20 << 30, "MIG-2"))),
    ),
    complete=True,
)


@pytest.mark.parametrize(
    ("setting", "devices"),
    [
        (None, [("0", "GPU-a"), ("MIG-1", "MIG-1"), ("MIG-2", "MIG-2")]),
        ("1", [("1", "MIG-1")]),
        ("MIG-2", [("MIG-2", "MIG-2")]),
        ("MIG-2,0", [("MIG-2", "MIG-2"), ("0", "GPU-a")]),
        ("MIG-3", []),
        ("MIG-GPU-b/7/0", [("MIG-GPU-b/7/0", "MIG-GPU-b/7/0")]),
        ("GPU-c", []),
    ],
)
def test_slices_of_a_device_are_devices(
    setting: str | None, devices: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    monkeypatch.setattr(CudaPlatform, "survey", lambda self: SLICED)
    monkeypatch.setattr(CudaPlatform, "software", lambda self: "")
    platform = CudaPlatform()
    entries = shown(platform, "CUDA_VISIBLE_DEVICES")
    ids = [device.id for device in platform.devices()] if entries else []
    assert list(zip(entries, ids, strict=True)) == devices


def test_the_order_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert shown(with_two(monkeypatch, CudaPlatform), "CUDA_DEVICE_ORDER") == ["FASTEST_FIRST"] * 2


@pytest.mark.parametrize(
    ("settings", "entries", "models"),
    [
        ({}, ["0", "1"], ["A", "B"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["1"], ["B"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"], ["B"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["0"], ["A"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["0"], ["B"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-bbbbbbbb-2"}, ["0"], ["B"]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "0"}, ["0"], ["B"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, [], []),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, ["0"], ["B"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, [], []),
        ({"HIP_VISIBLE_DEVICES": "-1"}, [], []),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0"}, [], []),
        ({"HIP_VISIBLE_DEVICES": "GPU-none"}, [], []),
    ],
    ids=str,
)
def test_rocm(settings: dict[str, str], entries: list[str], models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    platform = with_two(monkeypatch, RocmPlatform)
    monkeypatch.setattr(RocmPlatform, "survey", lambda self: Inventory(TWO, complete=True))
    assert shown(platform, "HIP_VISIBLE_DEVICES") == shown(platform, "CUDA_VISIBLE_DEVICES") == entries
    if entries:
        assert [device.description for device in platform.devices()] == models
        assert "ROCR_VISIBLE_DEVICES" not in platform.worker_environment("rocm:0", 1, {})  # inherited: it comes first
    else:
        assert any(name in platform.detect().reason for name in settings)


@pytest.mark.parametrize(
    ("setting", "entries"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("0,1", ["0", "1"]),
        ("0, 1", ["0"]),
        ("0,7,1", ["0"]),
        ("0;1", []),
        ("0,0", ["0"]),
        ("", []),
        ("-1", []),
        ("Ascend910-0", []),
    ],
)
def test_ascend(setting: str | None, entries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if setting is not None:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", setting)
    platform = with_two(monkeypatch, AscendPlatform)
    assert shown(platform, "ASCEND_RT_VISIBLE_DEVICES") == entries
    if not entries:
        assert f"ASCEND_RT_VISIBLE_DEVICES={setting!r} hides all 2 devices" in platform.detect().reason


@pytest.mark.parametrize(
    ("mask", "selector", "entries"),
    [
        (None, None, ["0", "1"]),
        ("", "", ["0", "1"]),
        ("default", None, ["0", "1"]),
        ("1", None, ["1"]),
        ("1,0", None, ["0", "1"]),
        ("0.1", None, ["0.1"]),
        ("0.0,0.1,1", None, ["0.0,0.1", "1"]),
        ("1,1", None, ["1"]),
        ("1,5", None, ["1"]),
        ("5", None, []),
        ("-1", None, []),
        ("GPU-0", None, []),
        (None, "level_zero:0", ["0"]),
        (None, "level_zero:gpu", ["0", "1"]),
        (None, "*:*", ["0", "1"]),
        (None, "LEVEL_ZERO:GPU", ["0", "1"]),
        (None, "level_zero:0,1", ["0", "1"]),
        (None, "level_zero:1.0", ["1.0"]),
        (None, "level_zero:*.*", ["0", "1"]),
        (None, "!level_zero:0", ["1"]),
        (None, "*:gpu;!level_zero:1", ["0"]),
        (None, "!opencl:*", ["0", "1"]),
        (None, "opencl:gpu", []),
        (None, "level_zero:cpu", []),
        (None, "opencl:cpu;level_zero:1", ["1"]),
        (None, "level_zero", []),
        (None, "level_zero:banana", []),
        (None, "metal:gpu", []),
        ("1", "level_zero:0", ["1"]),
        ("0", "level_zero:1", []),
    ],
)
def test_xpu(mask: str | None, selector: str | None, entries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ZE_AFFINITY_MASK", mask), ("ONEAPI_DEVICE_SELECTOR", selector)):
        if value is not None:
            monkeypatch.setenv(name, value)
    platform = with_two(monkeypatch, XpuPlatform)
    assert shown(platform, "ZE_AFFINITY_MASK") == entries
    # Whatever numbers the selector had, a worker's only device is the first that it sees.
    assert set(shown(platform, "ONEAPI_DEVICE_SELECTOR")) <= {"level_zero:gpu"}
    if not entries:
        said = platform.detect().reason
        assert "ZE_AFFINITY_MASK" in said or "ONEAPI_DEVICE_SELECTOR" in said


@pytest.mark.parametrize(
    ("setting", "entries"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("GPU-bbbbbbbb-2", ["GPU-bbbbbbbb-2"]),
        ("0,0", []),
        ("", []),
        ("-1", []),
        ("none", []),
        ("9", []),
    ],
)
def test_musa(setting: str | None, entries: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if setting is not None:
        monkeypatch.setenv("MUSA_VISIBLE_DEVICES", setting)
    platform = with_two(monkeypatch, MusaPlatform)
    assert shown(platform, "MUSA_VISIBLE_DEVICES") == entries
    if not entries:
        assert "MUSA_VISIBLE_DEVICES" in platform.detect().reason


@pytest.mark.parametrize("kind", PLATFORMS, ids=lambda kind: kind.name)
def test_a_worker_planned_elsewhere_sees_the_device_that_it_is_told(kind: type[Accelerator]) -> None:
    """No device here: the plan is for another machine."""
    platform = kind()
    platform.check_device(f"{kind.name}:7")
    environment = platform.worker_environment(f"{kind.name}:7", 2, {})
    assert any(environment[name] == "7" for name in kind.visibility if name in environment)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert platform.worker_device(f"{kind.name}:7") == f"{kind.device_type}:0"


WORDS = ("0", "1", "2", "-1", "", " ", "0.1", "GPU-", "GPU-a", "MIG-x", "level_zero:", "gpu", "*", "!", ";")
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
PARTS = st.lists(st.one_of(st.sampled_from(WORDS), TEXTS), max_size=6)
ODD = st.builds(str.join, st.sampled_from([",", ";", ":", ", ", ""]), PARTS)


@pytest.mark.parametrize("kind", PLATFORMS, ids=lambda kind: kind.name)
def test_any_text_at_all_leaves_devices_of_the_machine_or_says_why_it_leaves_none(
    kind: type[Accelerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = with_two(monkeypatch, kind)
    alone = "ZE_AFFINITY_MASK" if kind is XpuPlatform else kind.visibility[-1]

    @settings(max_examples=150, deadline=None)
    @given(st.lists(ODD, min_size=len(kind.visibility), max_size=len(kind.visibility)))
    def check(values: list[str]) -> None:
        with patch.dict(os.environ, dict(zip(kind.visibility, values, strict=True))):
            found = platform.detect()
            devices = platform.devices()
            environments = [platform.worker_environment(device.name, 1, {"tf32": True}) for device in devices]
        assert found.present
        assert found.reason
        assert found.reason.isprintable()
        if found:
            assert len({environment[alone] for environment in environments}) == len(devices)
        else:
            assert any(name in found.reason for name in kind.visibility)

    check()
