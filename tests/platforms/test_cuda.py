"""NVIDIA devices: found without torch, planned for without any, and each worker sees its own."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.pipelines import builders
from tests.pipelines.builders import ASSISTANT

from omni_actors.entrypoints.commands.deployment import Deployment, ready_plan
from omni_actors.pipelines.factory import missing_devices, resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.registry import Registry
from omni_actors.platforms import select
from omni_actors.platforms.cuda import platform as cuda
from omni_actors.platforms.cuda.platform import Gpu, machine_gpus, visible
from omni_actors.platforms.platform import PlatformError

TWO = [Gpu("GPU-aaa", "NVIDIA H200", 141 << 30), Gpu("GPU-bbb", "NVIDIA H200", 141 << 30)]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "machine_gpus", lambda: TWO)
    monkeypatch.setattr(cuda, "version", lambda name: "2.13.0")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "machine_gpus", list)


def plan_of(*overrides: str) -> Plan:
    builders._CURRENT = ASSISTANT  # type: ignore[attr-defined]
    registry = Registry({"assistant": f"{builders.__name__}:_CURRENT"})
    return resolve("assistant", platform="cuda", registry=registry, overrides=overrides)


@pytest.mark.usefixtures("two_gpus")
def test_a_machine_with_devices_runs_on_them() -> None:
    platform = select(plugins=[])
    assert platform.name == "cuda"
    assert [(device.name, device.memory) for device in platform.devices()] == [
        ("cuda:0", 141 << 30),
        ("cuda:1", 141 << 30),
    ]
    with pytest.raises(PlatformError, match="no device 'cuda:2'; it has: cuda:0, cuda:1"):
        platform.check_device("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_a_torch_for_cpus_is_no_use_of_a_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda, "version", lambda name: "2.13.0+cpu")
    with caplog.at_level(logging.WARNING):
        assert select(plugins=[]).name == "cpu"
    assert "2.13.0+cpu" in caplog.text


@pytest.mark.usefixtures("two_gpus")
def test_a_worker_sees_its_own_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("stages.llm.devices=[cuda:0, cuda:1]", "stages.llm.replicas=2", "stages.vocoder.device=cuda:1")
    llm = plan.stage("llm")
    assert [llm.environment_of(replica)["CUDA_VISIBLE_DEVICES"] for replica in (0, 1)] == ["0", "1"]
    assert llm.environment_of(0)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert llm.environment_of(0)["OMP_NUM_THREADS"] == str(llm.threads)
    assert [plan.hello("llm", replica, 1).device for replica in (0, 1)] == ["cuda:0", "cuda:0"]
    assert [llm.device_of(replica) for replica in (0, 1)] == ["cuda:0", "cuda:1"]
    assert plan.stage("vocoder").environment_of(0)["CUDA_VISIBLE_DEVICES"] == "1"
    assert llm.dtype == "bfloat16"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbb")
    assert plan_of().stage("llm").environment_of(0)["CUDA_VISIBLE_DEVICES"] == "GPU-bbb"


@pytest.mark.usefixtures("two_gpus")
def test_float32_is_float32_unless_it_is_said() -> None:
    """torch lets convolutions run in TF32 by itself, with 10 bits of mantissa: too far from the reference's sound."""
    assert plan_of().stage("llm").environment_of(0)["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in plan_of("platforms.cuda.tf32=true").stage("llm").environment_of(0)


@pytest.mark.usefixtures("two_gpus")
def test_media_are_decoded_on_the_cpu() -> None:
    media = plan_of().media
    assert media is not None
    assert (media.platform, media.device) == ("cpu", "cpu")


@pytest.mark.usefixtures("no_gpu")
def test_a_deployment_for_devices_is_planned_without_any_and_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("stages.llm.device=cuda:0", "stages.vocoder.device=cuda:7")
    assert (plan.platform, plan.stage("vocoder").device) == ("cuda", "cuda:7")
    assert plan.stage("vocoder").environment_of(0)["CUDA_VISIBLE_DEVICES"] == "7"
    (missing,) = [one for one in missing_devices(plan) if one.startswith("stage 'vocoder'")]
    assert missing.startswith("stage 'vocoder' is to run on cuda:7: platform 'cuda' finds none here: ")
    monkeypatch.setattr(Deployment, "plan", lambda self: plan)
    with pytest.raises(PlanError, match="stage 'llm' is to run on cuda:0"):
        ready_plan(Deployment("assistant", None, (), None, None, None))
    with pytest.raises(PlanError, match="they are called cuda:0, cuda:1"):
        plan_of("stages.llm.device=gpu0")


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_devices_is_not_claimed() -> None:
    assert select(plugins=[]).name == "cpu"


@pytest.mark.parametrize(
    ("setting", "entries"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("1, 0", ["1", "0"]),
        ("0,5,1", ["0"]),
        ("0,0", []),
        ("", []),
        ("-1", []),
        ("GPU-b", ["GPU-b"]),
        ("GPU-c", []),
        ("MIG-x", ["MIG-x"]),
        ("NoDevFiles", []),
    ],
)
def test_what_is_visible_follows_cudas_rules(setting: str | None, entries: list[str]) -> None:
    assert [entry for entry, _ in visible(TWO, setting)] == entries


def machine(root: Path, *, listed: int = 0, nodes: int = 0) -> Path:
    for index in range(listed):
        folder = root / f"proc/driver/nvidia/gpus/0000:0{index}:00.0"
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(
            f"Model: \t\t NVIDIA L{index}\nGPU UUID: \t GPU-{index}\nBus Type: PCIe\n"
        )
    (root / "dev").mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(nodes))) if nodes else ():
        (root / "dev" / name).touch()
    return root


def test_the_drivers_files_say_what_there_is(tmp_path: Path) -> None:
    assert machine_gpus(machine(tmp_path / "none")) == []
    assert machine_gpus(machine(tmp_path / "both", listed=2, nodes=2)) == [
        Gpu("GPU-0", "NVIDIA L0", None),
        Gpu("GPU-1", "NVIDIA L1", None),
    ]
    assert machine_gpus(machine(tmp_path / "nodes", nodes=2)) == [Gpu(None, "NVIDIA GPU", None)] * 2
    windows = machine(tmp_path / "windows")
    (windows / "dev/dxg").touch()
    assert machine_gpus(windows) == [Gpu(None, "NVIDIA GPU", None)]
    hidden = machine(tmp_path / "hidden", listed=1)
    (hidden / "proc/driver/nvidia/gpus/0000:00:00.0/information").write_text("GPU UUID: GPU-????????\n")
    assert machine_gpus(hidden) == [Gpu(None, "NVIDIA GPU", None)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A machine with one device node and an NVML binding to be filled in."""
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia0")] if self.name == "dev" else []))
    nvml = ModuleType("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_nvml_is_asked_first(driver: ModuleType) -> None:
    ended = []
    memory = ModuleType("memory")
    memory.total = 7  # type: ignore[attr-defined]
    for name, function in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: ended.append(True),
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
        "nvmlDeviceGetUUID": lambda handle: b"GPU-x",
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
    }.items():
        setattr(driver, name, function)
    assert machine_gpus() == [Gpu("GPU-x", "NVIDIA H200", 7)]
    assert ended


def test_a_broken_nvml_is_survived(driver: ModuleType) -> None:
    def broken() -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    driver.nvmlInit = broken  # type: ignore[attr-defined]
    assert machine_gpus() == [Gpu(None, "NVIDIA GPU", None)]


@pytest.mark.deadline(60)
def test_detection_imports_no_torch_and_changes_nothing() -> None:
    code = (
        "import os, sys; before = dict(os.environ); from omni_actors.platforms.cuda import CudaPlatform as P;"
        "P().detect(), P().devices(); sys.exit('torch' in sys.modules or dict(os.environ) != before)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
