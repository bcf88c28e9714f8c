"""The simulated device's memory, faults, link and detection."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from omni_sim import SimPlatform
from omni_sim.errors import SimAllocationError, SimDeviceLost
from omni_sim.runtime import SimRuntime

from omni_actors.platforms.platform import Fault, PlatformError, default_options
from omni_actors.platforms.runtime import TransportError
from omni_actors.protocol.options import filled

MIB = 1 << 20
Open = Callable[..., SimRuntime]


def used(sim: SimRuntime) -> int:
    memory = sim.memory()
    assert memory.total is not None
    assert memory.free is not None
    return memory.total - memory.free


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open a device in this process, under the given variables."""

    def open(incarnation: int = 1, options: dict[str, object] | None = None, **environment: object) -> SimRuntime:
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        it = SimRuntime("cpu", filled(SimPlatform.options, options or {}))
        it.open()
        it.plan_faults(incarnation)
        return it

    return open


# --- how it is found -------------------------------------------------------------------------------------------------


def test_devices_are_those_that_the_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = SimPlatform()
    assert [device.name for device in platform.devices()] == ["sim:0", "sim:1"]
    monkeypatch.setenv("OMNI_SIM_DEVICES", "4")
    monkeypatch.setenv("OMNI_SIM_VISIBLE_DEVICES", "3,1,9,0")
    assert [device.id for device in platform.devices()] == ["SIM-0003", "SIM-0001"]
    assert platform.worker_environment("sim:1", 2, default_options(SimPlatform))["OMNI_SIM_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("setting", [{"OMNI_SIM_DEVICES": "0"}, {"OMNI_SIM_VISIBLE_DEVICES": ""}])
def test_without_a_device_there_is_none(setting: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    found = SimPlatform().detect()
    assert not found
    assert not found.present


def test_a_setting_that_makes_no_sense_is_trouble_and_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SIM_DEVICES", "many")
    found = SimPlatform().detect()
    assert not found
    assert found.present
    assert "OMNI_SIM_DEVICES='many'" in found.reason


def test_a_fault_that_is_none_keeps_the_device_from_opening(opened: Open) -> None:
    with pytest.raises(PlatformError, match="fire@1"):
        opened(OMNI_SIM_FAULTS="fire@1")


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_operations_give_takes_memory_until_it_is_freed(opened: Open) -> None:
    sim = opened(OMNI_SIM_MEMORY=16 * MIB)
    with sim.step():
        kept = torch.zeros(MIB)  # float32: four times as many bytes
        view = kept.view(2, -1)[1]
    assert used(sim) == 4 * MIB
    del kept
    assert used(sim) == 4 * MIB
    del view
    assert used(sim) == 0
    assert sim.counters()["sim_memory_peak_bytes"] == 4 * MIB


def test_what_does_not_fit_raises_the_drivers_own_error(opened: Open) -> None:
    sim = opened(OMNI_SIM_MEMORY=16 * MIB)
    with sim.step(), pytest.raises(SimAllocationError, match="simDeviceAlloc") as caught:
        torch.zeros(5 * MIB)
    assert sim.fault(caught.value) is Fault.MEMORY
    sim.free_memory()
    with sim.step():
        torch.zeros(3 * MIB)
    assert sim.counters()["sim_memory_refusals_total"] == 1


def test_weights_and_caches_take_memory(opened: Open) -> None:
    sim = opened(OMNI_SIM_MEMORY=16 * MIB)
    cache = sim.kernels.zeros((2, MIB), torch.float32, sim.torch_device)
    assert used(sim) == cache.nbytes == 8 * MIB
    product = sim.kernels.linear(torch.ones(512, 1024), None)
    assert used(sim) == 10 * MIB
    assert product(torch.ones(1, 1024))[0, 0] == 1024
    assert sim.counters()["sim_linear_calls_total"] == 1
    read = torch.ones(MIB)
    with sim.loading():
        read.sum()
    assert used(sim) == 14 * MIB


def test_memory_that_is_reserved_is_nobodys(opened: Open) -> None:
    assert opened(options={"reserved_bytes": 6 * MIB}, OMNI_SIM_MEMORY=16 * MIB).memory().total == 10 * MIB


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_planned_shortage_meets_its_step_and_no_other(opened: Open) -> None:
    sim = opened(OMNI_SIM_FAULTS="oom@2")
    for step in (1, 2, 3):
        with sim.step():
            if step == 2:
                with pytest.raises(SimAllocationError):
                    torch.ones(2)
            torch.ones(2)
    with sim.step():
        pass  # computes nothing: none
    assert sim.steps == 3


def test_a_lost_device_stays_lost(opened: Open) -> None:
    sim = opened(OMNI_SIM_FAULTS="lost@1")
    with sim.step():
        for _ in range(2):
            with pytest.raises(SimDeviceLost) as caught:
                torch.ones(2)
            assert sim.fault(caught.value) is Fault.DEVICE
    assert sim.fault(ValueError("whatever comes of it")) is Fault.DEVICE
    with pytest.raises(SimDeviceLost):
        sim.synchronize()
    with pytest.raises(SimDeviceLost):
        sim.transport().export(torch.ones(2))


def test_a_second_life_has_no_faults(opened: Open) -> None:
    sim = opened(incarnation=2, OMNI_SIM_FAULTS="lost@1,drop@1")
    with sim.step():
        torch.ones(2)
    assert sim.transport().open(sim.transport().export(torch.ones(2))).tolist() == [1, 1]


# --- the link --------------------------------------------------------------------------------------------------------

ELSEWHERE = """
import sys, torch
from omni_sim import SimPlatform
from omni_sim.runtime import SimRuntime
from omni_actors.platforms.platform import default_options
sim = SimRuntime("cpu", default_options(SimPlatform))
sim.open()
print(sim.transport().export(torch.arange(5000.0)).hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def elsewhere() -> Iterator[tuple[bytes, subprocess.Popen[str]]]:
    """Start another process on a device; yield the handle of its tensor and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        yield bytes.fromhex(process.stdout.readline()), process
        process.kill()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 7)], ids=str)
def test_a_tensor_is_handed_over_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype, opened: Open) -> None:
    transport = opened().transport()
    sent = torch.randint(0, 2, shape).to(dtype)
    got = transport.open(transport.export(sent))
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert torch.equal(got, sent)


def test_what_is_lent_takes_memory_until_it_is_given_back(opened: Open) -> None:
    sim = opened(OMNI_SIM_MEMORY=8 * MIB)
    handle = sim.transport().export(torch.ones(MIB))
    assert used(sim) > 4 * MIB
    with pytest.raises(TransportError, match="simDeviceAlloc"):
        sim.transport().export(torch.ones(MIB))
    sim.transport().release(handle)
    assert used(sim) == 0


def test_a_process_that_ends_takes_its_handles_with_it(
    opened: Open, elsewhere: tuple[bytes, subprocess.Popen[str]]
) -> None:
    transport = opened().transport()
    handle, process = elsewhere
    before = transport.open(handle)
    process.kill()
    process.wait()
    assert before[-1] == 4999  # a view that was open stays
    transport.close(handle)
    with pytest.raises(TransportError):
        transport.open(handle)


def test_only_a_device_with_access_opens_anothers_memory(
    opened: Open, elsewhere: tuple[bytes, subprocess.Popen[str]]
) -> None:
    handle, _ = elsewhere
    apart = opened(options={"peer_access": False}, OMNI_SIM_VISIBLE_DEVICES="1")
    with pytest.raises(TransportError, match="no access"):
        apart.transport().open(handle)
    same = opened(options={"peer_access": False}, OMNI_SIM_VISIBLE_DEVICES="0")
    assert same.transport().open(handle)[7] == 7


def test_a_transfer_takes_as_long_as_its_bytes(opened: Open) -> None:
    transport = opened(OMNI_SIM_LINK_BYTES_S=40e6).transport()
    handle = transport.export(torch.ones(MIB))
    begun = time.monotonic()
    transport.open(handle)
    assert time.monotonic() - begun >= 4 * MIB / 40e6


def test_a_planned_cut_meets_one_transfer(opened: Open) -> None:
    transport = opened(OMNI_SIM_FAULTS="drop@2").transport()
    handle = transport.export(torch.ones(3))
    transport.open(handle)
    with pytest.raises(TransportError, match="cut"):
        transport.open(handle)
    assert transport.open(handle).sum() == 3
