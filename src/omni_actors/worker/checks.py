"""Declarations of a payload's tensors, and the check at both ends of an edge.

A number that is not finite, or a tensor of the wrong type or shape, is caught where the payload leaves its stage or
enters another one. There the request and the producer are known; three stages later the mistake would be noise in an
audio stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload, held_tensors


class OutputError(ValueError):
    """A model's output breaks its declaration. The message names the tensor and the mistake and holds no values.
    ``stage`` made the output, if another stage noticed."""

    def __init__(self, message: str, stage: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage


class WarmUpError(OutputError):
    """A model that was just loaded computes no finite numbers: its weights are damaged, or not made for this dtype."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} of the warm-up are not finite")


class InputError(OutputError):
    """A payload that arrived does not fit the stage. ``stage`` is the producer, once the producer is known."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The declaration of one tensor: numpy's dtype name (or ``bfloat16``; ``float`` is any floating type) and a shape
    in which ``None`` fits any length. Integers are at least ``least``, if given, and below ``below``, if given."""

    dtype: str
    shape: tuple[int | None, ...]
    least: int | None = None
    below: int | None = None


_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})

Specs = Mapping[str, Mapping[str, TensorSpec]]
"""Payload kind → tensor name → spec."""


def check_payload(payload: Payload, specs: Mapping[str, TensorSpec]) -> None:
    """Raise :class:`OutputError` unless the payload has these tensors, and every tensor is a plain array of finite
    numbers.

    Measured on one core: 2 µs for a small payload, 20 µs per MB of float32, 50 µs per MB of bfloat16.
    """
    if specs and (missing := specs.keys() - payload.tensors.keys()):
        raise OutputError(f"payload '{payload.kind}' lacks tensor '{min(missing)}'")
    held = held_tensors(payload)
    for name in payload.tensors:
        if (lying := held.get(name)) is not None:  # the tensor lies where it was computed and is checked there
            if (spec := specs.get(name)) is not None:
                _check_spec(name, payload, spec)
            if not lying.finite():
                raise OutputError(f"{_where(name, payload)} is not finite")
            continue
        tensor = payload.tensors[name]
        if not isinstance(tensor, np.ndarray):
            raise OutputError(f"{_where(name, payload)} is a {type(tensor).__name__}, not a numpy array")
        if not tensor.flags.c_contiguous or tensor.dtype.kind in "OUSV":
            raise OutputError(f"{_where(name, payload)} is not a plain array in C order")
        if (spec := specs.get(name)) is not None:
            _check_spec(name, payload, spec)
        if not finite(tensor, payload.dtypes.get(name, "")):
            raise OutputError(f"{_where(name, payload)} is not finite")


def check_input(payload: Payload, specs: Mapping[str, TensorSpec]) -> None:
    """Raise :class:`InputError` unless the payload has these tensors, as declared. The producer has checked that the
    numbers are finite."""
    for name, spec in specs.items():
        if name not in payload.tensors:
            raise InputError(f"payload '{payload.kind}' lacks tensor '{name}'")
        try:
            _check_spec(name, payload, spec)
        except OutputError as error:
            raise InputError(str(error)) from None


def _where(name: str, payload: Payload) -> str:
    return f"tensor '{name}' of payload '{payload.kind}'"


def _check_spec(name: str, payload: Payload, spec: TensorSpec) -> None:
    held = held_tensors(payload).get(name)
    if held is not None:
        shape, dtype = held.shape, held.dtype
    else:
        shape = payload.tensors[name].shape
        dtype = payload.dtypes.get(name) or payload.tensors[name].dtype.name
    floats = spec.dtype == "float" and dtype in _FLOATS
    if not (floats or spec.dtype == dtype) or not _fits(shape, spec.shape):
        want = ", ".join("n" if n is None else str(n) for n in spec.shape)
        raise OutputError(f"{_where(name, payload)} is {dtype}{list(shape)}, not {spec.dtype}[{want}]")
    if spec.least is None and spec.below is None:
        return
    tensor = payload.tensors[name]
    if tensor.size and spec.least is not None and tensor.min() < spec.least:
        raise OutputError(f"{_where(name, payload)} has a number below {spec.least}")
    if tensor.size and spec.below is not None and tensor.max() >= spec.below:
        raise OutputError(f"{_where(name, payload)} has a number that is not below {spec.below}")


def _fits(shape: tuple[int, ...], want: tuple[int | None, ...]) -> bool:
    return len(shape) == len(want) and all(w is None or n == w for n, w in zip(shape, want, strict=True))


def finite(tensor: np.ndarray[Any, Any], dtype: str) -> bool:
    """Return whether all numbers are finite; integers always are. ``dtype`` matters only if it is ``bfloat16``."""
    if dtype == "bfloat16":  # uint16 bits: all ones in the exponent are infinities and NaNs
        return not bool(((tensor & 0x7F80) == 0x7F80).any())
    if tensor.dtype.kind not in "fc":
        return True
    return bool(np.isfinite(tensor).all())
