"""The worker's half: a runtime over one simulated device. Modules with torch are imported when the runtime opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from omni_actors.platforms.platform import Fault, PlatformError
from omni_actors.platforms.runtime import Capability, DeviceRuntime, DeviceTransport, Memory
from omni_sim import hardware
from omni_sim.errors import SimAllocationError, SimDeviceLost

if TYPE_CHECKING:
    import torch

    from omni_actors.platforms.runtime.kernels import Kernels
    from omni_sim.computing import Computing
    from omni_sim.memory import SimMemory
    from omni_sim.transport import SimTransport


class SimRuntime(DeviceRuntime):
    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        super().__init__(device, options)
        self.calls: Counter[str] = Counter()
        """Calls of this device's own kernels, by name."""
        self.steps = 0
        """The number of engine steps that computed anything."""
        self._planned: tuple[hardware.Planned, ...] = ()
        self._memory: SimMemory
        self._computing: Computing
        self._kernels: Kernels
        self._transport: SimTransport

    def open(self) -> None:
        super().open()
        # The serving process must not import these modules, and the head of this module does not either: the platform
        # names this module, and looking at names should not load torch.
        from omni_sim.computing import Computing
        from omni_sim.kernels import sim_kernels
        from omni_sim.memory import SimMemory
        from omni_sim.transport import SimTransport

        try:
            seen, limit, self._planned = hardware.visible(), hardware.memory(), hardware.planned_faults()
            bandwidth = hardware.bandwidth()
        except ValueError as error:
            raise PlatformError(str(error)) from None
        if not seen:
            raise PlatformError(f"no simulated device is left: {hardware.COUNT}, {hardware.VISIBLE}")
        self._memory = SimMemory(max(0, limit - self.options["reserved_bytes"]))
        self._computing = Computing(self._memory)
        self._kernels = sim_kernels(self._memory, self.calls)
        self._transport = SimTransport(seen[0], self._memory, bandwidth, self.options["peer_access"], self._check)

    @property
    def kernels(self) -> Kernels:
        return self._kernels

    def capability(self) -> Capability:
        return Capability("sim1", frozenset({"bf16"}))

    def memory(self) -> Memory:
        # Only tensors that the engines compute lie on this device (a real driver knows all memory), so ``used`` would
        # miss the tensors that a process makes elsewhere.
        return Memory(self._memory.limit, self._memory.limit - self._memory.used())

    def synchronize(self) -> None:
        self._check()

    def fault(self, error: BaseException) -> Fault:
        if self._computing.lost or isinstance(error, SimDeviceLost):
            return Fault.DEVICE
        if isinstance(error, SimAllocationError):
            return Fault.MEMORY
        return super().fault(error)

    def free_memory(self) -> None:
        self._memory.sweep()

    def host(self) -> AbstractContextManager[Any]:
        from torch.utils._python_dispatch import _disable_current_modes

        context: AbstractContextManager[Any] = _disable_current_modes()
        return context

    def onload(self, tensor: torch.Tensor) -> torch.Tensor:
        self._check()
        with self.host():
            copy = tensor.clone()
        self._memory.account(copy)
        return copy

    def transport(self) -> DeviceTransport:
        return self._transport

    # ---- for this platform's own engines

    def plan_faults(self, incarnation: int) -> None:
        """Plan the faults, which happen in a worker's first incarnation only."""
        if incarnation > 1:
            self._planned = ()
        self._transport.drop_at = next((it.at for it in self._planned if it.kind == "drop"), None)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Run torch's operations of the block on this device, and count the tensors that they read."""
        self._computing.loading = True
        try:
            with self._computing:
                yield
        finally:
            self._computing.loading = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the operations of one step of an engine on this device."""
        computing, before = self._computing, self._computing.launches
        due = next((it.kind for it in self._planned if it.at == self.steps + 1 and it.kind != "drop"), None)
        computing.fail_next = due
        try:
            with computing:
                yield
        finally:
            computing.fail_next = None
            self.steps += computing.launches > before

    def counters(self) -> dict[str, float]:
        return {
            "sim_memory_used_bytes": self._memory.used(),
            "sim_memory_peak_bytes": self._memory.peak,
            "sim_memory_refusals_total": self._memory.refusals,
            "sim_steps_total": self.steps,
            "sim_launches_total": self._computing.launches,
            "sim_transfers_total": self._transport.transfers,
            "sim_transferred_bytes_total": self._transport.transferred_bytes,
            **{f"sim_{name}_calls_total": count for name, count in self.calls.items()},
        }

    def _check(self) -> None:
        if self._computing.lost:
            raise SimDeviceLost("simSynchronize: device is gone (code 0x5117)")
