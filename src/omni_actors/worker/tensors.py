"""Conversion between torch tensors and the numpy arrays of a :class:`~omni_actors.connectors.payload.Payload`.

numpy has no bfloat16: such a tensor travels as ``uint16`` bits under the name ``bfloat16``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import DeviceTensor, DeviceTensors, Payload, held_tensors
from omni_actors.platforms.runtime import DeviceRuntime, DeviceTransport, TransportError
from omni_actors.worker import checks

log = logging.getLogger("omni_actors.worker")

_PROBE = 16
"""Count of the numbers in a probe: 0, 1, 2, …"""


class TorchTensor:
    """A :class:`~omni_actors.connectors.payload.DeviceTensor` of torch: contiguous, without a gradient."""

    __slots__ = ("_host", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._host: np.ndarray[Any, Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)

    def host(self) -> np.ndarray[Any, Any]:
        array = self._host
        if array is None:
            host = self.tensor.cpu()
            bits = host.dtype == torch.bfloat16
            array = self._host = host.view(torch.int16).numpy().view(np.uint16) if bits else host.numpy()
        return array

    def copy(self) -> TorchTensor:
        return TorchTensor(self.tensor.clone())

    def finite(self) -> bool:
        if self.tensor.is_cpu:  # numpy is several times faster on the CPU
            return checks.finite(self.host(), "bfloat16" if self.tensor.dtype == torch.bfloat16 else "")
        return bool(self.tensor.isfinite().all())


class TorchMemory:
    """A :class:`~omni_actors.connectors.device.DeviceMemory` over a runtime's transport of device memory."""

    def __init__(self, runtime: DeviceRuntime, transport: DeviceTransport) -> None:
        self._transport = transport
        self._device = torch.empty(0, device=runtime.torch_device).device  # as tensors name the device, with its index

    @classmethod
    def of(cls, runtime: DeviceRuntime) -> TorchMemory | None:
        """Return the memory of a runtime's device, or ``None`` if its tensors cannot leave it except through the
        host."""
        transport = runtime.transport()
        return None if transport is None else cls(runtime, transport)

    def takes(self, tensor: DeviceTensor) -> bool:
        return isinstance(tensor, TorchTensor) and tensor.tensor.device == self._device

    def export(self, tensor: DeviceTensor) -> bytes:
        assert isinstance(tensor, TorchTensor)
        return self._transport.export(tensor.tensor)

    def release(self, handle: bytes) -> None:
        self._transport.release(handle)

    def probe(self) -> bytes:
        try:
            numbers = torch.arange(_PROBE, dtype=torch.int64, device=self._device)
        except RuntimeError as error:  # no memory
            raise TransportError(str(error)) from error
        return self._transport.export(numbers)

    def reaches(self, handle: bytes) -> bool:
        try:
            values = self._transport.open(handle)
            try:
                return bool(values.tolist() == list(range(_PROBE)))
            finally:
                del values
                self._transport.close(handle)
        except RuntimeError as error:  # also from reading: an unreadable mapping is useless
            log.warning("device memory of another worker cannot be read here: %s", error)
            return False

    def open(self, handle: bytes) -> TorchTensor:
        return TorchTensor(self._transport.open(handle))

    def close(self, handle: bytes) -> None:
        self._transport.close(handle)


def tensor_payload(kind: str, meta: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Payload:
    """Return a payload of these tensors, which stay on their device until a reader needs them elsewhere. Do not change
    the tensors until the payload is sent."""
    held = {name: TorchTensor(tensor.detach().contiguous()) for name, tensor in tensors.items()}
    dtypes = {name: "bfloat16" for name, tensor in tensors.items() if tensor.dtype is torch.bfloat16}
    return Payload(kind, meta, DeviceTensors(held), dtypes)


def tensor_of(
    payload: Payload, name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a copy of a payload's tensor that outlives the step: on ``device``, as ``dtype`` (its own by default)."""
    held = held_tensors(payload).get(name)
    if isinstance(held, TorchTensor):
        return held.tensor.to(device=device, dtype=dtype, copy=True)
    return tensor_view(payload, name).to(device=device, dtype=dtype, copy=True)


def tensor_view(payload: Payload, name: str) -> torch.Tensor:
    """Return a payload's tensor on the CPU without a copy, valid as long as the payload may be used (see
    :class:`~omni_actors.connectors.payload.Payload`).

    Do not write to the view: torch has no read-only tensors, and the memory belongs to another process and is mapped
    for reading, so that a write ends this process.
    """
    array = payload.tensors[name]
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))  # else torch warns about every view
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if payload.dtypes.get(name) == "bfloat16" else tensor


class _Writable:
    """A wrapper that declares a read-only array writable and keeps its memory alive."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array
