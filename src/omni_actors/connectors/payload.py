"""A payload as a worker holds it: named tensors and small metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

TensorSpecs = Mapping[str, tuple[tuple[int, ...], str]]
"""The tensors that a payload is going to have: name → (shape, dtype). A dtype is numpy's name, or ``bfloat16``."""


class DeviceTensor(Protocol):
    """A tensor as a model computed it, wherever it lies. What it wraps is its maker's to know."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """numpy's name, or ``bfloat16``."""
        ...

    @property
    def nbytes(self) -> int: ...
    def host(self) -> np.ndarray[Any, Any]:
        """Its values in host memory, in C order: a copy, made once, unless it lies there already."""
        ...

    def copy(self) -> DeviceTensor:
        """The same in memory of its own, on the same device."""
        ...

    def finite(self) -> bool:
        """Whether all numbers are; integers always are."""
        ...


class DeviceTensors(Mapping[str, np.ndarray[Any, Any]]):
    """Tensors of which some lie where they were computed (:attr:`held`), for whoever can use them there, and the others
    are arrays. Whoever asks for any as an array gets it in host memory."""

    __slots__ = ("_arrays", "held")

    def __init__(
        self, held: Mapping[str, DeviceTensor], arrays: Mapping[str, np.ndarray[Any, Any]] | None = None
    ) -> None:
        self.held = held
        self._arrays = arrays or {}

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        tensor = self.held.get(name)
        return self._arrays[name] if tensor is None else tensor.host()

    def __iter__(self) -> Iterator[str]:
        return iter((*self.held, *self._arrays))

    def __len__(self) -> int:
        return len(self.held) + len(self._arrays)

    def copy(self) -> DeviceTensors:
        """In memory of their own, each where it lies."""
        arrays = {name: array.copy() for name, array in self._arrays.items()}
        return DeviceTensors({name: tensor.copy() for name, tensor in self.held.items()}, arrays)


@dataclass(slots=True)
class Payload:
    """Tensors by name plus metadata of plain builtins.

    Tensors are numpy arrays (C order), or become some when they are asked for (:class:`DeviceTensors`). ``bfloat16``
    has no numpy type: it travels as ``uint16`` bits under the dtype name ``bfloat16`` in ``dtypes``. A payload received
    from a link is a *view* of memory that is lent to the reader: it is read-only, and valid until the end of the step
    in which it is consumed (see ``Engine.feed``). Whoever keeps it longer copies it (:meth:`copy`).
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        held = held_tensors(self)
        return sum(held[name].nbytes if name in held else self.tensors[name].nbytes for name in self.tensors)

    def copy(self) -> Payload:
        """One whose tensors are its own and may be written, each where it lies."""
        tensors = self.tensors
        if isinstance(tensors, DeviceTensors):
            return Payload(self.kind, self.meta, tensors.copy(), self.dtypes)
        return Payload(self.kind, self.meta, {name: array.copy() for name, array in tensors.items()}, self.dtypes)


def held_tensors(payload: Payload) -> Mapping[str, DeviceTensor]:
    """Those of its tensors that lie where they were computed."""
    tensors = payload.tensors
    return tensors.held if isinstance(tensors, DeviceTensors) else _NONE


_NONE: Mapping[str, DeviceTensor] = {}

_WIDTHS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (64, 128)}
_DTYPES = {
    "bool": np.dtype("bool"),
    "bfloat16": np.dtype("uint16"),
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}") for kind, widths in _WIDTHS.items() for bits in widths},
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """What holds a tensor of this dtype here. Raises :class:`TypeError` for any but plain numbers: a name comes from
    another process, and numpy's own reading of one is a language (``2i4,(3,)O``)."""
    try:
        return _DTYPES[name]
    except KeyError:
        raise TypeError(f"a tensor cannot hold {name[:40]!r}") from None


def blank_payload(kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
    """A payload with tensors to be filled in, in memory of its own."""
    tensors = {name: np.empty(shape, numpy_dtype(dtype)) for name, (shape, dtype) in specs.items()}
    return Payload(kind, meta, tensors, bfloat16_of(specs))


def bfloat16_of(specs: TensorSpecs) -> dict[str, str]:
    """Those of the tensors whose dtype numpy does not know."""
    return {name: dtype for name, (_, dtype) in specs.items() if dtype == "bfloat16"}


def text_payload(text: str) -> Payload:
    """A piece of text; the consumer joins pieces in order."""
    return Payload("text", {"text": text})


def pcm_payload(samples: np.ndarray[Any, Any], sample_rate: int, **meta: Any) -> Payload:
    """Mono float32 samples in [-1, 1], shape [n], at ``sample_rate`` Hz."""
    return Payload("pcm", {"sample_rate": sample_rate, **meta}, {"samples": samples})
