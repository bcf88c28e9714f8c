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
    array = payload.tensors[name]
    if payload.dtypes.get(name) == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array.copy())
    return tensor.to(device=device, dtype=dtype)
