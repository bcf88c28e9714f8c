"""Which platform is chosen, and what the cpu says of itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.platforms import machines

from omni_actors.platforms import CpuPlatform, Detection, Device, OmniPlatform, PlatformError, select
from omni_actors.platforms.accelerator import Unit
from omni_actors.platforms.cpu import usable_cores, usable_memory
from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.probe import PluginReport, State
from omni_actors.platforms.select import GROUP, names


class Accelerator(OmniPlatform):
    """A vendor's platform, whose device is always there."""

    contract = 1
    name = "accel"
    default_dtype = "bfloat16"

    def detect(self) -> Detection:
        return Detection(True, True, "two devices")

    def devices(self) -> tuple[Device, ...]:
        return (Device("accel:0", 1 << 30), Device("accel:1", 1 << 30))

    def cores(self) -> int:
        return 4

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"ACCEL_VISIBLE": device}


class Second(Accelerator):
    name = "second"


class Absent(Accelerator):
    name = "absent"

    def detect(self) -> Detection:
        return Detection(False, False, "no device of its kind")


def found(kind: type[OmniPlatform]) -> PluginReport:
    """What a look at the plugin finds."""
    detection = kind().detect()
    state: State = "usable" if detection else "present" if detection.present else "absent"
    return PluginReport(kind.name, f"{__name__}:{kind.__name__}", "", "", state, detection.reason)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but a processor."""
    machines.use(monkeypatch, tmp_path / "machine")


def test_without_an_accelerator_it_is_the_cpu_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert select(reports=[found(Absent)]).name == "cpu"
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "cpu" in caplog.text


def test_the_cpu_asked_for_by_name_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert select("cpu", reports=[found(Accelerator)]).name == "cpu"
    assert caplog.records == []


def test_an_out_of_tree_platform_that_detects_its_device_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machines.has(monkeypatch, CudaPlatform, Unit("NVIDIA H200"))
    assert select(reports=[found(Absent)]).name == "cuda"
    assert select(reports=[found(Absent), found(Accelerator)]).name == "accel"


def test_two_claims_are_an_error_that_names_both() -> None:
    both = [found(Accelerator), found(Second)]
    with pytest.raises(PlatformError, match=r"'accel' and 'second'.*--platform"):
        select(reports=both)
    assert select("second", reports=both).name == "second"


def test_a_platform_that_is_not_there_is_refused() -> None:
    with pytest.raises(PlatformError, match="no device of its kind"):
        select("absent", reports=[found(Absent)])
    known = "accel, ascend, cpu, cuda, musa, rocm, xpu"
    entry_points = [EntryPoint("accel", f"{__name__}:Accelerator", GROUP)]
    with pytest.raises(PlatformError, match=f"there is no platform 'tpu'; there are: {known}"):
        select("tpu", plugins=entry_points)
    assert names(entry_points) == known.split(", ")


def test_builtins_that_were_asked_already_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machines.has(monkeypatch, CudaPlatform, Unit("NVIDIA H200"))
    asked = CudaPlatform()
    assert select(plugins=[], builtins={"cuda": asked}) is asked
    assert select("cuda", builtins={"cuda": asked}) is asked


def test_engines_by_kind() -> None:
    cpu = CpuPlatform()
    assert cpu.engine_for("autoregressive") == "omni_actors.worker.engines.autoregressive:AutoregressiveEngine"
    assert cpu.engine_for("generation") == "omni_actors.worker.engines.oneshot:GenerationEngine"
    assert cpu.engine_for("diffusion") == "omni_actors.worker.engines.diffusion:DiffusionEngine"
    with pytest.raises(PlatformError, match="no engine of kind 'quantum'"):
        cpu.engine_for("quantum")


def test_devices_are_checked() -> None:
    CpuPlatform().check_device("cpu")
    with pytest.raises(PlatformError, match="no device 'cuda:0'; it has: cpu"):
        CpuPlatform().check_device("cuda:0")


def test_the_worker_gets_its_thread_count_for_every_library() -> None:
    environment = CpuPlatform().worker_environment("cpu", 3, {})
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"


def files(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ({}, 16),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            2,
        ),
    ],
)
def test_cores_are_the_affinity_cut_to_the_quota(tmp_path: Path, content: dict[str, str], cores: int) -> None:
    assert usable_cores(files(tmp_path, content)) == cores


def test_memory_is_the_machines_cut_to_the_groups(tmp_path: Path) -> None:
    files(tmp_path, {"proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\n"})
    assert usable_memory(tmp_path) == 1 << 20
    files(tmp_path, {"sys/fs/cgroup/memory.max": "4096\n"})
    assert usable_memory(tmp_path) == 4096
    assert usable_memory(tmp_path / "nowhere") is None


def test_this_machine_has_cores_and_memory() -> None:
    (device,) = CpuPlatform().devices()
    assert device.memory is not None
    assert device.memory > 1 << 20
    assert 1 <= CpuPlatform().cores() <= (os.cpu_count() or 1)
