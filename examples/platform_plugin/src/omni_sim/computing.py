"""Computation on the device: every torch operation inside :class:`Computing` is one launch on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from omni_sim.errors import SimAllocationError, SimDeviceLost
from omni_sim.memory import SimMemory


class Computing(TorchDispatchMode):
    """A torch mode that counts launches, accounts for the memory of their results, and brings planned faults about."""

    def __init__(self, memory: SimMemory) -> None:
        super().__init__()
        self.launches = 0
        self.lost = False
        self.fail_next: str | None = None
        """The planned fault of the next launch."""
        self.loading = False
        """Whether the arguments of operations count too, because weights come from files and not from operations."""
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
    """Call ``take`` with every tensor that has a storage, among the results or arguments of an operation."""
    if isinstance(result, torch.Tensor):
        if (
            result.layout is torch.strided
        ):  # a tensor reordered by oneDNN has no storage; its memory is reserved where it is reordered
            take(result)
    elif isinstance(result, list | tuple):
        for item in result:
            account(item, take)
