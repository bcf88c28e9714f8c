"""Between torch tensors and the numpy arrays of a :class:`~omni_actors.connectors.payload.Payload`.

numpy has no bfloat16: such a tensor travels as ``uint16`` bits and its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from omni_actors.connectors.payload import Payload


def tensor_payload(kind: str, meta: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Payload:
    """A payload of these tensors, brought to host memory. On the CPU it shares their memory: they must not change
    until it is sent."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    dtypes: dict[str, str] = {}
    for name, tensor in tensors.items():
        host = tensor.detach().contiguous().cpu()
        if host.dtype == torch.bfloat16:
            dtypes[name] = "bfloat16"
            host = host.view(torch.int16)
            arrays[name] = host.numpy().view(np.uint16)
        else:
            arrays[name] = host.numpy()
    return Payload(kind, meta, arrays, dtypes)


def tensor_of(
    payload: Payload, name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> torch.Tensor:
    """A copy of a payload's tensor that outlives the step: on ``device``, as ``dtype`` (its own by default)."""
    return tensor_view(payload, name).to(device=device, dtype=dtype, copy=True)


def tensor_view(payload: Payload, name: str) -> torch.Tensor:
    """A payload's tensor on the CPU without a copy, for as long as the payload may be used (see
    :class:`~omni_actors.connectors.payload.Payload`).

    It must not be written: torch has no read-only tensors, and what it would write to is memory of another process,
    mapped for reading, where a write ends this one.
    """
    array = payload.tensors[name]
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))  # else torch warns of each view what is said above
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if payload.dtypes.get(name) == "bfloat16" else tensor


class _Writable:
    """Says of a read-only array that it can be written, and keeps its memory alive."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array
