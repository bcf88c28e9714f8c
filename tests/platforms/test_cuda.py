"""NVIDIA devices: planned for with and without any, each worker sees its own, float32 is float32."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipelines import builders
from tests.pipelines.builders import ASSISTANT
from tests.platforms import machines

from omni_actors.entrypoints.commands.deployment import Deployment, ready_plan
from omni_actors.entrypoints.weights import DeploymentSpec
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.missing import missing_devices
from omni_actors.pipelines.registry import Registry
from omni_actors.platforms import select
from omni_actors.platforms.accelerator import Unit
from omni_actors.platforms.cuda import CudaPlatform
from omni_actors.platforms.platform import PlatformError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.use(monkeypatch, tmp_path)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [Unit("NVIDIA H200", 141 << 30, f"GPU-{name}") for name in ("aaa", "bbb")]
    machines.has(monkeypatch, CudaPlatform, *two)


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


def test_a_deployment_for_devices_is_planned_without_any_and_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("stages.llm.device=cuda:0", "stages.vocoder.device=cuda:7")
    assert (plan.platform, plan.stage("vocoder").device) == ("cuda", "cuda:7")
    assert plan.stage("vocoder").environment_of(0)["CUDA_VISIBLE_DEVICES"] == "7"
    assert (
        "stage 'vocoder' is to run on cuda:7: platform 'cuda' finds none here: no NVIDIA device on this machine"
        in missing_devices(plan)
    )
    monkeypatch.setattr(DeploymentSpec, "plan", lambda self: plan)
    with pytest.raises(PlanError, match="stage 'llm' is to run on cuda:0"):
        ready_plan(Deployment("assistant", None, (), None, None, None))
    for name in ("gpu0", "cuda:00", "cuda:0 "):  # a device has one name, so that nobody is given it twice
        with pytest.raises(PlanError, match="they are called cuda:0, cuda:1"):
            plan_of(f'stages.llm.device="{name}"')


def test_a_device_with_a_fault_is_not_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    machines.has(monkeypatch, CudaPlatform, Unit("H200", trouble="GPU is lost"), Unit("H200"))
    assert missing_devices(plan_of()) == []
    assert missing_devices(plan_of("stages.llm.device=cuda:0")) == [
        "stage 'llm' is to run on cuda:0, which has a fault: GPU is lost"
    ]


@pytest.mark.process
def test_who_asks_for_devices_that_cannot_be_used_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machines.nvidia(tmp_path)
    machines.driver(monkeypatch, tmp_path / "lib")
    plan = plan_of()
    monkeypatch.setattr(DeploymentSpec, "plan", lambda self: plan)
    with pytest.raises(PlanError, match=r"to run on cuda:0: .* NVIDIA's driver library cannot be loaded .*--gpus all"):
        ready_plan(Deployment("assistant", None, (), "cuda", None, None))
    machines.driver(monkeypatch, tmp_path / "lib2", "libcuda.so.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(PlanError, match="CUDA_VISIBLE_DEVICES='' hides the device"):
        ready_plan(Deployment("assistant", None, (), "cuda", None, None))


def test_a_machine_without_devices_is_not_claimed() -> None:
    assert select(plugins=[]).name == "cpu"
