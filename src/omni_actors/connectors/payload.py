"""Payloads as workers hold them: named tensors and small metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

TensorSpecs = Mapping[str, tuple[tuple[int, ...], str]]
"""The tensors of a payload to be made: name → (shape, dtype). A dtype is numpy's name, or ``bfloat16``."""


class DeviceTensor(Protocol):
    """A tensor in the memory in which a model computed it. Only the maker knows the wrapped object."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """The dtype: numpy's name, or ``bfloat16``."""
        ...

    @property
    def nbytes(self) -> int: ...
    def host(self) -> np.ndarray[Any, Any]:
        """Return the values in host memory, in C order: a copy, made once, unless the tensor lies in host memory
        already."""
        ...

    def copy(self) -> DeviceTensor:
        """Return a copy in memory of its own, on the same device."""
        ...

    def finite(self) -> bool:
        """Return whether all numbers are finite; integers always are."""
        ...


class DeviceTensors(Mapping[str, np.ndarray[Any, Any]]):
    """Tensors of which some stay on the device (:attr:`held`), for readers that can use them there, and the others are
    arrays. Access by name always gives an array in host memory."""

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
        """Return copies of all tensors, each on its own device."""
        arrays = {name: array.copy() for name, array in self._arrays.items()}
        return DeviceTensors({name: tensor.copy() for name, tensor in self.held.items()}, arrays)


@dataclass(slots=True)
class Payload:
    """Tensors by name plus metadata of plain builtins.

    Tensors are numpy arrays (C order), or become arrays on access (:class:`DeviceTensors`). ``bfloat16`` has no numpy
    type: such a tensor travels as ``uint16`` bits under the dtype name ``bfloat16`` in ``dtypes``. A payload received
    from a link is a *view* of memory that is lent to the reader: read-only, and valid until the end of the step in
    which the payload is consumed (see ``Engine.feed``). To keep a payload longer, copy it (:meth:`copy`).

        >>> payload = Payload("codes", {"frame": 0}, {"ids": np.zeros((2, 8), np.int64)})
        >>> payload.nbytes
        128
        >>> kept = payload.copy()
        >>> kept.tensors["ids"] is payload.tensors["ids"]
        False
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Total size of the tensors in bytes."""
        held = held_tensors(self)
        return sum(held[name].nbytes if name in held else self.tensors[name].nbytes for name in self.tensors)

    def copy(self) -> Payload:
        """Return a payload with writable tensors of its own, each on the device of the original."""
        tensors = self.tensors
        if isinstance(tensors, DeviceTensors):
            return Payload(self.kind, self.meta, tensors.copy(), self.dtypes)
        return Payload(self.kind, self.meta, {name: array.copy() for name, array in tensors.items()}, self.dtypes)


def held_tensors(payload: Payload) -> Mapping[str, DeviceTensor]:
    """Return the tensors of a payload that stay on a device."""
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
    """Return the numpy dtype for a tensor's dtype name. Raises :class:`TypeError` for anything but plain numbers: a
    name comes from another process, and numpy's own dtype strings are a language (``2i4,(3,)O``).

        >>> numpy_dtype("float32"), numpy_dtype("bfloat16")
        (dtype('float32'), dtype('uint16'))
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise TypeError(f"a tensor cannot hold {name[:40]!r}") from None


def blank_payload(kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
    """Return a payload with tensors to be filled in, in memory of its own."""
    tensors = {name: np.empty(shape, numpy_dtype(dtype)) for name, (shape, dtype) in specs.items()}
    return Payload(kind, meta, tensors, bfloat16_of(specs))


def bfloat16_of(specs: TensorSpecs) -> dict[str, str]:
    """Return the tensors whose dtype is ``bfloat16``, with the name of the dtype."""
    return {name: dtype for name, (_, dtype) in specs.items() if dtype == "bfloat16"}


def text_payload(text: str) -> Payload:
    """Return a payload with a piece of text; the consumer joins pieces in order.

    >>> text_payload("Good ").meta
    {'text': 'Good '}
    """
    return Payload("text", {"text": text})


def pcm_payload(samples: np.ndarray[Any, Any], sample_rate: int, **meta: Any) -> Payload:
    """Return a payload of mono float32 samples in [-1, 1], shape [n], at ``sample_rate`` Hz; ``meta`` is added to the
    metadata."""
    return Payload("pcm", {"sample_rate": sample_rate, **meta}, {"samples": samples})
