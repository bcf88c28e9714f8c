"""Nested state of a picture as a payload, and back: what stages of one diffusion model hand to each other.

State is made of tensors, numbers, texts, ``None``, lists, tuples, dictionaries with text keys, and data classes that
the family names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.worker.checks import InputError
from omni_actors.worker.tensors import tensor_of, tensor_payload

_PLAIN = (bool, int, float, str, type(None))


def pack(kind: str, meta: dict[str, Any], state: Any) -> Payload:
    """Return a payload of a kind with nested state. ``meta`` gets the key ``tree``, the structure of the state.

    Raises:
        TypeError: The state holds something that is neither of the known types nor a data class.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensor_payload(kind, {**meta, "tree": _flattened(state, tensors)}, tensors)


def unpack(payload: Payload, classes: Iterable[type], device: torch.device) -> Any:
    """Return the nested state of a payload, with tensors of its own on the device.

    Args:
        payload: A payload of :func:`pack`.
        classes: The data classes that the state may hold.
        device: The device for the tensors.

    Raises:
        InputError: The payload has no such structure, or a data class that is not among the classes.
    """
    try:
        return _rebuilt(payload.meta["tree"], payload, {it.__name__: it for it in classes}, device)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"payload '{payload.kind}' has no state of a picture ({error!r})") from error


def _flattened(state: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = state
        return ["tensor", name]
    if isinstance(state, _PLAIN):
        return ["plain", state]
    if isinstance(state, list | tuple):
        kind = "list" if isinstance(state, list) else "tuple"
        return [kind, [_flattened(part, tensors) for part in state]]
    if isinstance(state, dict):
        return ["dict", {str(name): _flattened(part, tensors) for name, part in state.items()}]
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        parts = {it.name: _flattened(getattr(state, it.name), tensors) for it in dataclasses.fields(state)}
        return ["class", type(state).__name__, parts]
    raise TypeError(f"a {type(state).__name__} cannot leave its stage")


def _rebuilt(tree: Any, payload: Payload, classes: dict[str, type], device: torch.device) -> Any:
    kind, what, *rest = tree
    if kind == "tensor":
        return tensor_of(payload, what, device=device)
    if kind == "plain":
        return what
    if kind in ("list", "tuple"):
        parts = [_rebuilt(part, payload, classes, device) for part in what]
        return parts if kind == "list" else tuple(parts)
    named = rest[0] if kind == "class" else what
    fields = {name: _rebuilt(part, payload, classes, device) for name, part in named.items()}
    return classes[what](**fields) if kind == "class" else fields
