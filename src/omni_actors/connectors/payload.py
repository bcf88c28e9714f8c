"""A payload as a worker holds it: named tensors and small metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TensorSpecs = Mapping[str, tuple[tuple[int, ...], str]]
"""The tensors that a payload is going to have: name → (shape, dtype). A dtype is numpy's name, or ``bfloat16``."""


@dataclass(slots=True)
class Payload:
    """Tensors by name plus metadata of plain builtins.

    Tensors are numpy arrays (C order). ``bfloat16`` has no numpy type: it travels as ``uint16`` bits under the dtype
    name ``bfloat16`` in ``dtypes``. A payload received from a link is a *view* of memory that is lent to the reader: it
    is read-only, and valid until the end of the step in which it is consumed (see ``Engine.feed``). Whoever keeps it
    longer copies it.
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())


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
