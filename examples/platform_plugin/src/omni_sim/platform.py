"""The serving process's half: the devices of the machine, and the environment of a worker on a device.

This module imports no torch and opens no device. A real platform reads /dev, /sys or its vendor's management library;
this platform reads the environment (:mod:`omni_sim.hardware`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Detection, Device, Finding, OmniPlatform, Verdict
from omni_actors.protocol.options import Option
from omni_sim import hardware


class SimPlatform(OmniPlatform):
    contract = 1  # the version of the contract that this class is written for
    name = "sim"
    runtime = "omni_sim.runtime:SimRuntime"
    dtypes = ("float32", "bfloat16")
    # Engines are named by dotted strings: the serving process never imports them.
    engines = {
        "autoregressive": "omni_sim.engines:SimAutoregressiveEngine",
        "generation": "omni_sim.engines:SimGenerationEngine",
        "diffusion": "omni_sim.engines:SimDiffusionEngine",
    }
    options = {
        "peer_access": Option(
            True, "Whether a device can open the memory of another one; else only its own, in another process."
        ),
        "reserved_bytes": Option(0, "Memory of each worker's device that stays unused."),
    }
    visibility = (hardware.VISIBLE,)
    collectives = ""  # the devices do not compute together, so a replica has one rank
    transports = ("sim_link",)
    quantization = {"fp8": "the simulated device has no 8-bit numbers"}

    def detect(self) -> Detection:
        try:
            count = len(hardware.visible())
        except ValueError as error:
            return Detection(False, True, str(error))
        if not count:
            return Detection(False, False, f"no simulated device: {hardware.COUNT} or {hardware.VISIBLE} leaves none")
        return Detection(True, True, f"{count} simulated devices of {hardware.memory() >> 20} MiB")

    def devices(self) -> tuple[Device, ...]:
        memory = hardware.memory()
        return tuple(
            Device(f"sim:{place}", memory, "simulated accelerator", id=f"SIM-{index:04d}")
            for place, index in enumerate(hardware.visible())
        )

    def cores(self) -> int:
        return CpuPlatform().cores()  # the processor does the arithmetic

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the processor's settings for threads, and hide every device but the worker's own."""
        index = hardware.visible()[int(device.removeprefix("sim:"))]
        return CpuPlatform().worker_environment(device, threads, {}) | {hardware.VISIBLE: str(index)}

    def worker_device(self, device: str) -> str:
        """Return torch's name of the device in the worker.

        A real device is ``vendor:0`` there, the only device that the worker sees. The memory of this device is the
        host's, so that plain torch computes on it.
        """
        return "cpu"

    def diagnose(self) -> tuple[Finding, ...]:
        found = super().diagnose()
        if faults := hardware.planned_faults():
            text = ", ".join(map(str, faults))
            found += (Finding("sim faults", Verdict.WARNING, text, f"unset {hardware.FAULTS} to have none"),)
        return found
