"""What is computed on the device: every torch operation inside :class:`Computing` is one of its launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni_sim.errors import SimAllocationError, SimDeviceLost
from omni_sim.memory import SimMemory


class Computing(TorchDispatchMode):
    """Counts launches, accounts for what they allocate, and fails them as it was planned."""

    def __init__(self, memory: SimMemory) -> None:
        super().__init__()
        self.launches = 0
        self.lost = False
        self.fail_next: str | None = None
        """The fault that the next launch meets."""
        self.loading = False
        """Whether what operations read counts too: weights come from files, not from operations."""
        self._memory = memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.launches += 1
        if self.fail_next is not None:
            self._fail()
        if self.lost:
            raise SimDeviceLost("simLaunch: device is gone (code 0x5117)")
        result = func(*args, **(kwargs or {}))
        account(result, self._memory.account)
        if self.loading:
            account(args, self._memory.account)
        return result

    def _fail(self) -> None:
        fault, self.fail_next = self.fail_next, None
        if fault == "lost":
            self.lost = True
        else:
            self._memory.refusals += 1
            raise SimAllocationError("simDeviceAlloc: no memory left (it was planned so)")


def account(result: Any, take: Callable[[torch.Tensor], None]) -> None:
    """Show every tensor among an operation's results or arguments that has a storage."""
    if isinstance(result, torch.Tensor):
        if result.layout is torch.strided:  # what oneDNN has reordered has none: who reorders reserves it
            take(result)
    elif isinstance(result, list | tuple):
        for item in result:
            account(item, take)
