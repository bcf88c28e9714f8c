"""What is found on machines of every kind, whatever state their vendor's library is in: one clear line each, no crash,
and never a silent fall to the processor."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import machines

from omni_actors.platforms import accelerator, select
from omni_actors.platforms.accelerator import Accelerator
from omni_actors.platforms.ascend import AscendPlatform
from omni_actors.platforms.ascend import platform as ascend_platform
from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.musa import MusaPlatform
from omni_actors.platforms.platform import Detection
from omni_actors.platforms.rocm import RocmPlatform
from omni_actors.platforms.xpu import XpuPlatform

NVML = """
class NVMLError(Exception):
    def __init__(self, value, text):
        super().__init__(text)
        self.value = value

class Memory:
    total = 24 << 30

def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): return Memory
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}{handle}".encode()
def nvmlDeviceGetName(handle): return "L4"
"""

SMI = """
class AmdSmiMemoryType:
    VRAM = "vram"

def amdsmi_init(): pass
def amdsmi_get_processor_handles(): return [1, 2]
def amdsmi_get_gpu_device_bdf(handle): return f"0000:0{handle}:00.0"
def amdsmi_get_gpu_asic_info(handle): return {"market_name": "AMD Instinct MI300X"}
def amdsmi_get_gpu_memory_total(handle, kind): return 192 << 30
"""

HANGS = "import signal\nsignal.pause()\n"

LIBRARIES = {
    "present": "",
    "missing": None,
    "raises at import": "raise OSError('libvendor.so.1: undefined symbol: x')\n",
    "exits at import": "raise SystemExit(3)\n",
    "crashes at import": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "hangs at import": HANGS,
    "floods its output": "while True: print('driver warning ' * 100)\n",
}
"""Behaviours that come before a library's own functions: what its module does first."""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    machines.use(monkeypatch, tmp_path / "machine")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "machine"


@dataclass
class Library:
    """A vendor's library in the state that a test puts it in."""

    monkeypatch: pytest.MonkeyPatch
    folder: Path

    def put(self, name: str, text: str | None) -> None:
        machines.module(
            self.monkeypatch,
            self.folder,
            name,
            f"raise ModuleNotFoundError('No module named {name}')\n" if text is None else text,
        )
        if text is not None and ("pause" in text):
            self.monkeypatch.setattr(accelerator, "MANAGEMENT_S", 0.5)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    return Library(monkeypatch, tmp_path / "libraries")


def detected(kind: type[Accelerator], caplog: pytest.LogCaptureFixture) -> Detection:
    """What the platform detects; what every detection has in common holds."""
    platform = kind()
    found = platform.detect()
    assert found.reason
    assert found.reason.isprintable()
    assert found.present or not found.usable
    caplog.clear()
    with caplog.at_level(logging.INFO):
        chosen = select(plugins=[], builtins={kind.name: platform})
    said = [record for record in caplog.records if kind.name in record.getMessage()]
    if found.usable:
        assert chosen.name == kind.name
        assert all(device.name.startswith(f"{kind.name}:") for device in chosen.devices())
    else:
        assert chosen.name == "cpu"
        assert any(record.levelno == logging.WARNING for record in caplog.records)
        assert bool(said) is found.present
        assert all(record.levelno == logging.WARNING and found.reason in record.getMessage() for record in said[:1])
    return found


# --- NVIDIA ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_nvidia(machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.nvidia(machine, (0, 1), (0, 1))
    machines.torch(monkeypatch, tmp_path / "site", cuda="12.8")
    machines.driver(monkeypatch, tmp_path / "lib", "libcuda.so.1")


@pytest.mark.usefixtures("two_nvidia")
@pytest.mark.parametrize(
    ("first", "usable", "reason"),
    [
        ("present", True, "2 x L4"),
        ("missing", True, "NVIDIA L0, NVIDIA L1 (without NVML: ModuleNotFoundError: No module named pynvml)"),
        ("raises at import", True, "NVIDIA L0, NVIDIA L1 (without NVML: OSError: libvendor.so.1: undefined symbol: x)"),
        ("exits at import", True, "(without NVML: SystemExit: 3)"),
        ("crashes at import", True, "(without NVML: it died of SIGSEGV)"),
        ("hangs at import", False, "the NVIDIA driver does not answer: NVML has said nothing for 0.5 s; see dmesg"),
        ("floods its output", True, "(without NVML: it printed more than 1 MiB and did not come to an end)"),
    ],
)
def test_nvml_in_every_state(
    first: str, usable: bool, reason: str, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    text = LIBRARIES[first]
    library.put("pynvml", None if text is None else text + NVML)
    found = detected(CudaPlatform, caplog)
    assert (found.usable, found.present) == (usable, True)
    assert reason in found.reason


ANSWERS = [
    (
        "def nvmlInit(): raise OSError('libnvidia-ml.so.1: cannot open shared object file')",
        True,
        "without NVML: OSError",
    ),
    ("def nvmlInit(): raise NVMLError(12, 'NVML Shared Library Not Found')", True, "without NVML: NVMLError"),
    ("def nvmlInit(): raise NVMLError(4, 'Insufficient Permissions')", True, "Insufficient Permissions"),
    ("def nvmlInit(): raise NVMLError(9, 'Driver Not Loaded')", False, "the driver is not loaded"),
    ("def nvmlInit(): raise NVMLError(18, 'Driver/library version mismatch')", False, "of different versions"),
    ("def nvmlInit(): import signal; signal.pause()", False, "NVML has said nothing for 0.5 s"),
    ("def nvmlInit(): import os; os._exit(7)", True, "without NVML: it ended its process with status 7"),
    ("def nvmlDeviceGetCount(): return 0", False, "the driver shows this process none of the devices"),
    ("def nvmlDeviceGetCount(): return 1", True, "L4 (NVML counts 1 devices, there are files of 2)"),
    ("def nvmlDeviceGetCount(): return -1", True, "it counts -1 devices"),
    ("def nvmlDeviceGetCount(): return 10 ** 9", True, "it counts 1000000000 devices"),
    ("def nvmlDeviceGetCount(): return 'two'", True, "it counts 'two' devices"),
    ("def nvmlDeviceGetCount(): raise NVMLError(999, 'Unknown Error')", True, "NVMLError: Unknown Error"),
    ("def nvmlDeviceGetName(handle): return None", True, "2 x None"),
    ("def nvmlDeviceGetUUID(handle): raise NVMLError(15, 'GPU is lost')", False, "NVMLError: GPU is lost"),
    ("def nvmlDeviceGetMemoryInfo(handle): raise NVMLError(16, 'GPU requires reset')", False, "GPU requires reset"),
    ("def nvmlDeviceGetMemoryInfo(handle): raise NVMLError(3, 'Not Supported')", True, "2 x L4"),
    ("def nvmlDeviceGetCount(): raise NVMLError(999, 'two\\nlines\\x1b[0m')", True, "NVMLError: two lines [0m)"),
    ("def nvmlDeviceGetUUID(handle): raise NVMLError(15, 'GPU\\nis lost')", False, "NVMLError: GPU is lost"),
    ("del nvmlInit", True, "without NVML: AttributeError"),
]


@pytest.mark.usefixtures("two_nvidia")
@pytest.mark.parametrize(("change", "usable", "reason"), ANSWERS, ids=[change[:60] for change, _, _ in ANSWERS])
def test_whatever_nvml_answers(
    change: str, usable: bool, reason: str, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    library.put("pynvml", f"{NVML}\n{change}\n")
    found = detected(CudaPlatform, caplog)
    assert (found.usable, found.present) == (usable, True)
    assert reason in found.reason


@pytest.mark.usefixtures("two_nvidia")
def test_one_device_that_fell_off_the_bus_is_told_and_the_other_is_used(library: Library) -> None:
    lost = (
        "def nvmlDeviceGetHandleByIndex(index):\n    if index: raise NVMLError(15, 'GPU is lost')\n    return index\n"
    )
    library.put("pynvml", NVML + lost)
    platform = CudaPlatform()
    assert platform.detect()
    assert [(it.id, it.memory, it.trouble) for it in platform.devices()] == [
        ("GPU-00", 24 << 30, ""),
        (None, None, "NVMLError: GPU is lost"),
    ]
    library.put("pynvml", NVML + lost.replace("if index", "if not index"))
    assert CudaPlatform().usual_devices(0, 1, {}) == ("cuda:1",)


@pytest.mark.usefixtures("two_nvidia")
def test_a_device_that_is_cut_in_slices_is_its_slices(library: Library) -> None:
    cut = """
def nvmlDeviceGetMigMode(handle): return (handle, handle)
def nvmlDeviceGetMaxMigDeviceCount(handle): return 7
def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
    if index > 1: raise NVMLError(6, "Not Found")
    return f"{handle}-slice{index}"
"""
    library.put("pynvml", NVML + cut)
    platform = CudaPlatform()
    assert [it.id for it in platform.devices()] == ["GPU-00", "GPU-1-slice01-slice0", "GPU-1-slice11-slice1"]
    library.put("pynvml", NVML + cut.replace("index > 1", "True"))
    assert [it.trouble[:9] for it in CudaPlatform().devices()] == ["", "MIG is on"]


@pytest.mark.parametrize(
    ("built_for", "reason"),
    [
        ({"cuda": "12.8"}, ""),
        ({}, "the installed torch 2.11.0 is built for CPUs only: install its build for CUDA"),
        ({"hip": "6.4"}, "the installed torch 2.11.0 is built for ROCm 6.4: install its build for CUDA"),
        ({"xpu": "20250302"}, "the installed torch 2.11.0 is built for Intel GPUs: install its build for CUDA"),
    ],
    ids=str,
)
def test_a_torch_that_was_built_for_something_else_is_no_use_of_a_device(
    built_for: dict[str, str],
    reason: str,
    machine: Path,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machines.nvidia(machine)
    machines.torch(monkeypatch, tmp_path / "site", **built_for)
    machines.driver(monkeypatch, tmp_path / "lib", "libcuda.so.1")
    library.put("pynvml", NVML)
    found = detected(CudaPlatform, caplog)
    assert found.usable is not bool(reason)
    assert reason in found.reason


def none(machine: Path) -> None:
    """Nothing there."""


def bus_only(machine: Path) -> None:
    machines.pci(machine, "0000:3b:00.0", "0x10de", "0x2335", "0x030200")


def other_driver(machine: Path) -> None:
    machines.pci(machine, "0000:3b:00.0", "0x10de", "0x2335", "0x030000", "nouveau")


def sound_card(machine: Path) -> None:
    machines.pci(machine, "0000:3b:00.1", "0x10de", "0x0e1b", "0x040300")


def container_of_a_gpu_host(machine: Path) -> None:
    machines.nvidia(machine, nodes=(), listed=(0, 1))


@pytest.mark.parametrize(
    ("made", "libcuda", "usable", "present", "reason"),
    [
        (none, False, False, False, "no NVIDIA device on this machine"),
        (sound_card, False, False, False, "no NVIDIA device on this machine"),
        (bus_only, False, False, True, "an NVIDIA device is on the PCI bus, and this process has no nodes of it"),
        (other_driver, False, False, True, "an NVIDIA device is on the PCI bus, and its kernel driver is nouveau"),
        (container_of_a_gpu_host, False, False, True, "NVIDIA's driver library cannot be loaded (libcuda.so.1"),
        (
            container_of_a_gpu_host,
            True,
            False,
            True,
            "this process has no nodes of them: give the container its devices",
        ),
        (machines.nvidia, False, False, True, "NVIDIA's driver library cannot be loaded (libcuda.so.1"),
        (machines.nvidia, True, True, True, "NVIDIA L0 (without NVML"),
        (machines.jetson, True, True, True, "NVIDIA Jetson AGX Orin Developer Kit (without NVML"),
        (machines.jetson, False, False, True, "NVIDIA's driver library cannot be loaded"),
        (machines.windows, True, True, True, "NVIDIA GPU of Windows (without NVML"),
        (machines.windows, False, False, False, "no NVIDIA device: Windows brings no driver of it"),
    ],
)
def test_machines_without_nvml(
    made: Callable[[Path], object],
    libcuda: bool,
    usable: bool,
    present: bool,
    reason: str,
    machine: Path,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(machine)
    machines.torch(monkeypatch, tmp_path / "site", cuda="12.8")
    machines.driver(monkeypatch, tmp_path / "lib", *(["libcuda.so.1"] if libcuda else []))
    library.put("pynvml", None)
    found = detected(CudaPlatform, caplog)
    assert (found.usable, found.present) == (usable, present)
    assert reason in found.reason


@pytest.mark.process
def test_a_board_whose_gpu_shares_the_memory_has_the_boards(
    machine: Path, library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machines.jetson(machine)
    machines.driver(monkeypatch, tmp_path / "lib", "libcuda.so.1")
    for text in (
        None,
        NVML + "def nvmlDeviceGetCount(): return 1\ndef nvmlDeviceGetMemoryInfo(handle): raise NVMLError(3, '')\n",
    ):
        library.put("pynvml", text)
        assert [device.memory for device in CudaPlatform().devices()] == [64 << 30]


@pytest.mark.process
def test_nodes_that_a_container_was_given_are_those_of_their_files(machine: Path) -> None:
    """The driver lists all devices of the machine; the second was given."""
    machines.nvidia(machine, nodes=(1,), listed=(0, 1))
    assert [device.id for device in CudaPlatform().devices()] == ["GPU-11"]


# --- AMD -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_amd(machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.amd(machine, 2)
    machines.torch(monkeypatch, tmp_path / "site", hip="6.4")


AMD = [
    ("present", "", True, "2 x AMD Instinct MI300X"),
    ("missing", "", True, "2 x AMD GPU gfx942 (without amdsmi: ModuleNotFoundError"),
    ("raises at import", "", True, "(without amdsmi: OSError: libvendor.so.1: undefined symbol: x)"),
    ("exits at import", "", True, "(without amdsmi: SystemExit: 3)"),
    ("crashes at import", "", True, "(without amdsmi: it died of SIGSEGV)"),
    ("hangs at import", "", False, "the AMD driver does not answer: amdsmi has said nothing for 0.5 s"),
    ("present", "def amdsmi_init(): raise RuntimeError('AMDSMI_STATUS_DRIVER_NOT_LOADED')", True, "DRIVER_NOT_LOADED"),
    ("present", "def amdsmi_get_processor_handles(): return [1]", True, "amdsmi counts 1 devices, the kernel lets"),
    ("present", "def amdsmi_get_processor_handles(): return []", True, "amdsmi counts 0 devices, the kernel lets"),
    ("present", "def amdsmi_get_processor_handles(): return None", True, "without amdsmi: TypeError"),
    ("present", "def amdsmi_get_gpu_asic_info(handle): raise OSError('x')", True, "2 x AMD GPU gfx942"),
]


@pytest.mark.usefixtures("two_amd")
@pytest.mark.parametrize(("first", "change", "usable", "reason"), AMD)
def test_amdsmi_in_every_state(
    first: str, change: str, usable: bool, reason: str, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    text = LIBRARIES[first]
    library.put("amdsmi", None if text is None else f"{text}{SMI}\n{change}\n")
    found = detected(RocmPlatform, caplog)
    assert (found.usable, found.present) == (usable, True)
    assert reason in found.reason
    if usable:
        assert [(it.memory, it.id) for it in RocmPlatform().devices()] == [
            (192 << 30, "GPU-000000000000abc0"),
            (192 << 30, "GPU-000000000000abc1"),
        ]


def only_processor(machine: Path) -> None:
    machines.amd(machine, 0)


def no_compute_driver(machine: Path) -> None:
    machines.pci(machine, "0000:03:00.0", "0x1002", "0x74a1", "0x038000", "radeon")


def container_of_an_amd_host(machine: Path) -> None:
    machines.amd(machine, 2, nodes=False)


def amd_of_windows(machine: Path) -> None:
    machines.windows(machine)
    machines.write(machine, "opt/rocm/lib/librocdxg.so.1")


def one_of_two(machine: Path) -> None:
    machines.amd(machine, 2)
    (machine / "dev/dri/renderD128").unlink()


@pytest.mark.parametrize(
    ("made", "built_for", "usable", "present", "reason"),
    [
        (none, {"hip": "6.4"}, False, False, "no AMD device on this machine"),
        (only_processor, {"hip": "6.4"}, False, False, "no AMD device on this machine"),
        (no_compute_driver, {"hip": "6.4"}, False, True, "its kernel driver is radeon, without compute: load amdgpu"),
        (container_of_an_amd_host, {"hip": "6.4"}, False, True, "this process has no nodes of the devices: give the"),
        (one_of_two, {"hip": "6.4"}, True, True, "AMD GPU gfx942 ("),
        (amd_of_windows, {"hip": "6.4"}, True, True, "AMD GPU of Windows"),
        (machines.windows, {"hip": "6.4"}, False, False, "no AMD device on this machine"),
        (
            machines.amd,
            {},
            False,
            True,
            "AMD GPU gfx942 is here, but the installed torch 2.11.0 is built for CPUs only",
        ),
        (machines.amd, {"cuda": "12.8"}, False, True, "built for CUDA 12.8: install its build for ROCm"),
    ],
)
def test_machines_of_amd(
    made: Callable[[Path], object],
    built_for: dict[str, str],
    usable: bool,
    present: bool,
    reason: str,
    machine: Path,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(machine)
    machines.torch(monkeypatch, tmp_path / "site", **built_for)
    library.put("amdsmi", None)
    found = detected(RocmPlatform, caplog)
    assert (found.usable, found.present) == (usable, present)
    assert reason in found.reason


# --- Ascend ----------------------------------------------------------------------------------------------------------

NPU_SMI = """
import sys
if sys.argv[2] == "-m":
    print("NPU ID  Chip ID  Chip Logic ID  Chip Name")
    print("0       0        0              Ascend 910B3")
    print("0       1        -              Mcu")
    print("1       0        1              Ascend 910B3")
elif sys.argv[3] == "memory":
    print("DDR Capacity(MB) : 0")
    print("HBM Capacity(MB) : 65536")
else:
    print("Health : OK" if sys.argv[5] == "0" else "Health : Alarm")
"""

SET_ENV = "usr/local/Ascend/ascend-toolkit/set_env.sh"


@pytest.fixture
def two_ascend(machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.ascend(machine, 2)
    machines.torch(monkeypatch, tmp_path / "site")
    machines.write(tmp_path / "site", "torch_npu.py", "raise RuntimeError('imported in the parent')\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest")


def npu_smi(folder: Path, text: str) -> None:
    file = machines.write(folder, "npu-smi", f"#!{sys.executable}\n{text}")
    file.chmod(0o755)


@pytest.mark.usefixtures("two_ascend")
@pytest.mark.parametrize(
    ("text", "usable", "reason"),
    [
        (NPU_SMI, True, "2 x Ascend 910B3"),
        (None, True, "2 x Ascend 910B (without npu-smi)"),
        ("raise SystemExit(255)", True, "without npu-smi: CalledProcessError"),
        ("print('no such option')", True, "npu-smi counts 0 devices, there are nodes of 2"),
        (HANGS, False, "the Ascend driver does not answer: npu-smi has said nothing for 0.5 s"),
    ],
)
def test_npu_smi_in_every_state(
    text: str | None,
    usable: bool,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if text is not None:
        npu_smi(tmp_path / "bin", text)
        if text is HANGS:
            monkeypatch.setattr(accelerator, "MANAGEMENT_S", 0.5)
    found = detected(AscendPlatform, caplog)
    assert (found.usable, found.present) == (usable, True)
    assert reason in found.reason
    if text is NPU_SMI:
        assert [(it.memory, it.trouble) for it in AscendPlatform().devices()] == [
            (64 << 30, ""),
            (64 << 30, "npu-smi says that its health is Alarm"),
        ]


@pytest.mark.usefixtures("two_ascend")
def test_what_an_ascend_machine_lacks_is_said(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH")
    assert "CANN is not installed, or not in the environment" in detected(AscendPlatform, caplog).reason
    machines.write(machine, SET_ENV)
    assert f"CANN is not in the environment: source {machine / SET_ENV}" in detected(AscendPlatform, caplog).reason
    (tmp_path / "site/torch_npu.py").unlink()
    assert "torch-npu is not installed: pip install 'omni-actors[ascend]'" in detected(AscendPlatform, caplog).reason
    (machine / "dev/davinci_manager").unlink()
    assert "/dev/davinci_manager is missing: give the container its devices" in detected(AscendPlatform, caplog).reason
    for node in ("davinci0", "davinci1"):
        (machine / "dev" / node).unlink()
    assert "is on the PCI bus, and this process has no nodes of it" in detected(AscendPlatform, caplog).reason


# --- Intel and Moore Threads -----------------------------------------------------------------------------------------


def chip_only(machine: Path) -> None:
    machines.intel(machine, 0, on_chip=True)


def with_chip(machine: Path) -> None:
    machines.intel(machine, 1, on_chip=True)


def no_node(machine: Path) -> None:
    machines.intel(machine)
    (machine / "dev/dri/renderD140").unlink()


def no_intel_driver(machine: Path) -> None:
    machines.pci(machine, "0000:03:00.0", "0x8086", "0xe20b", "0x030000", "vfio-pci")


@pytest.mark.parametrize(
    ("made", "built_for", "usable", "present", "reason"),
    [
        (machines.intel, {"xpu": "20250302"}, True, True, "Intel GPU e20b"),
        (with_chip, {"xpu": "20250302"}, True, True, "Intel GPU e20b"),
        (chip_only, {"xpu": "20250302"}, False, False, "the one on the processor's chip, which is not used"),
        (none, {"xpu": "20250302"}, False, False, "no Intel device on this machine"),
        (no_node, {"xpu": "20250302"}, False, True, "renderD140 is missing: give the container its devices"),
        (no_intel_driver, {"xpu": "20250302"}, False, True, "no kernel driver has it: load i915 or xe"),
        (machines.intel, {}, False, True, "is here, but the installed torch 2.11.0 is built for CPUs only"),
    ],
)
def test_machines_of_intel(
    made: Callable[[Path], object],
    built_for: dict[str, str],
    usable: bool,
    present: bool,
    reason: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(machine)
    machines.torch(monkeypatch, tmp_path / "site", **built_for)
    found = detected(XpuPlatform, caplog)
    assert (found.usable, found.present) == (usable, present)
    assert reason in found.reason


def test_tiles_are_devices_unless_the_hierarchy_says_otherwise(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.intel(machine, 2, tiles=2)
    memory = [device.memory for device in XpuPlatform().devices()]
    assert memory == [12 << 30] * 4
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    assert [device.memory for device in XpuPlatform().devices()] == [24 << 30] * 2


@pytest.mark.parametrize(
    ("text", "libmusa", "usable", "reason"),
    [
        (NVML, True, True, "2 x L4"),
        (None, True, True, "2 x Moore Threads GPU (without pymtml: ModuleNotFoundError"),
        (NVML + "def nvmlDeviceGetCount(): return 3\n", True, True, "pymtml counts 3 devices, there are nodes of 2"),
        (NVML + "def nvmlDeviceGetCount(): return 0\n", True, True, "without pymtml: it knows no device"),
        (NVML + "def nvmlInit(): raise OSError('x')\n", True, True, "without pymtml: OSError: x"),
        (NVML, False, False, "libmusa.so cannot be loaded"),
        (HANGS, True, False, "the Moore Threads driver does not answer: pymtml has said nothing for 0.5 s"),
    ],
)
def test_machines_of_moore_threads(
    text: str | None,
    libmusa: bool,
    usable: bool,
    reason: str,
    machine: Path,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machines.moore(machine, 2)
    machines.torch(monkeypatch, tmp_path / "site")
    machines.write(tmp_path / "site", "torch_musa.py")
    machines.driver(monkeypatch, tmp_path / "lib", *(["libmusa.so"] if libmusa else []))
    library.put("pymtml", text)
    found = detected(MusaPlatform, caplog)
    assert (found.usable, found.present) == (usable, True)
    assert reason in found.reason


@pytest.mark.process
def test_older_drivers_of_moore_threads_call_nodes_otherwise(machine: Path) -> None:
    machines.write(machine, "dev/mtgpu0")
    machines.write(machine, "dev/mtgpu_mgr")
    assert [device.name for device in MusaPlatform().devices()] == ["musa:0"]


# --- all of them -----------------------------------------------------------------------------------------------------


def test_the_first_that_can_be_used_is_chosen_and_the_others_are_told(
    machine: Path, library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A workstation with an NVIDIA card that torch was not installed for, and an AMD one."""
    machines.nvidia(machine)
    machines.amd(machine)
    machines.torch(monkeypatch, tmp_path / "site", hip="6.4")
    machines.driver(monkeypatch, tmp_path / "lib", "libcuda.so.1")
    library.put("pynvml", None)
    library.put("amdsmi", None)
    with caplog.at_level(logging.INFO):
        assert select(plugins=[]).name == "rocm"
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "platform 'cuda' cannot be used: NVIDIA L0" in said[0][1]
    assert "install its build for CUDA" in said[0][1]


@pytest.mark.parametrize(
    ("made", "kind", "node", "groups"),
    [
        (machines.amd, RocmPlatform, "dev/kfd", "the groups render and video"),
        (machines.amd, RocmPlatform, "dev/dri/renderD128", "the groups render and video"),
        (machines.ascend, AscendPlatform, "dev/davinci0", "the group HwHiAiUser"),
        (machines.intel, XpuPlatform, "dev/dri/renderD140", "the group render"),
        (machines.moore, MusaPlatform, "dev/mtgpu.0", "the groups render and video"),
    ],
)
def test_nodes_that_may_not_be_opened_are_told_with_the_group_that_may(
    made: Callable[[Path], object],
    kind: type[Accelerator],
    node: str,
    groups: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(machine)
    monkeypatch.setattr(os, "access", lambda path, mode: path != machine / node)  # root may use them all
    assert detected(kind, caplog).reason == f"this process may not use {machine / node}: join {groups}"


@pytest.mark.parametrize(
    ("made", "kind", "folder", "found"),
    [
        (machines.amd, RocmPlatform, "dev/dri", "this process has no nodes of the devices"),
        (machines.amd, RocmPlatform, "sys/class/kfd", "no AMD device on this machine"),
        (machines.intel, XpuPlatform, "dev/dri", "renderD140 is missing"),
        (machines.ascend, AscendPlatform, "usr/local/Ascend", "CANN is not installed, or not in the environment"),
        (machines.jetson, CudaPlatform, "dev", "no NVIDIA device on this machine"),
    ],
)
def test_folders_that_may_not_be_entered_are_as_if_they_were_empty(
    made: Callable[[Path], object],
    kind: type[Accelerator],
    folder: str,
    found: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made(machine)
    monkeypatch.setattr(ascend_platform, "installed", lambda module: True)
    stat = os.stat

    def guarded(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if machine / folder in Path(os.fspath(path)).parents:  # root may enter them all
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", guarded)
    assert found in detected(kind, caplog).reason


def test_sizes_that_no_file_gives_sensibly_are_unknown(machine: Path, caplog: pytest.LogCaptureFixture) -> None:
    machines.intel(machine)
    machines.write(machine, "sys/bus/pci/devices/0000:03:00.0/tile0/physical_vram_size_bytes", "0xzz\n")
    machines.write(machine, "sys/bus/pci/devices/0000:03:00.0/drm/card0/lmem_total_bytes", "none\n")
    detected(XpuPlatform, caplog)
    assert [device.memory for device in XpuPlatform().devices()] == [None]


@pytest.mark.process
def test_detection_changes_nothing_of_the_process(machine: Path, library: Library) -> None:
    machines.nvidia(machine)
    machines.amd(machine)
    library.put("pynvml", NVML)
    before, loaded = dict(os.environ), set(sys.modules)
    for kind in (CudaPlatform, RocmPlatform, AscendPlatform, XpuPlatform, MusaPlatform):
        kind().detect()
    assert dict(os.environ) == before
    assert not {"pynvml", "amdsmi"} & (set(sys.modules) - loaded)
