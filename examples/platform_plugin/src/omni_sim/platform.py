"""The half that the serving process asks: which devices there are, and what a worker on one is given.

No torch here, and no device is opened: what a real platform reads from /dev, /sys or its vendor's management library,
this one reads from the environment (:mod:`omni_sim.hardware`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Detection, Device, Finding, OmniPlatform, Verdict
from omni_actors.protocol.options import Option
from omni_sim import hardware


class SimPlatform(OmniPlatform):
    contract = 1  # of which version of omni_actors.platforms.platform.CONTRACT this is written against
    name = "sim"
    runtime = "omni_sim.runtime:SimRuntime"
    dtypes = ("float32", "bfloat16")
    # Engines are named by dotted strings: the serving process never imports them.
    engines = {
        "autoregressive": "omni_sim.engines:SimAutoregressiveEngine",
        "generation": "omni_sim.engines:SimGenerationEngine",
    }
    options = {
        "peer_access": Option(
            True, "Whether a device can open the memory of another one; else only its own, in another process."
        ),
        "reserved_bytes": Option(0, "Memory of each worker's device that stays unused."),
    }
    visibility = (hardware.VISIBLE,)
    collectives = ""  # its devices do not compute together: a replica is one rank
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
        return CpuPlatform().cores()  # its arithmetic is the processor's

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Threads as on the processor, and the one device that the worker is for: it sees no other."""
        index = hardware.visible()[int(device.removeprefix("sim:"))]
        return CpuPlatform().worker_environment(device, threads, {}) | {hardware.VISIBLE: str(index)}

    def worker_device(self, device: str) -> str:
        """What torch calls it in the worker. A real device is ``vendor:0`` there, the only one that it sees; this one's
        memory is the host's, so that plain torch computes on it."""
        return "cpu"

    def diagnose(self) -> tuple[Finding, ...]:
        found = super().diagnose()
        if faults := hardware.planned_faults():
            text = ", ".join(map(str, faults))
            found += (Finding("sim faults", Verdict.WARNING, text, f"unset {hardware.FAULTS} to have none"),)
        return found
