"""A payload as a worker holds it: named tensors and small metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Payload:
    """Tensors by name plus metadata of plain builtins.

    Tensors are numpy arrays (C order). ``bfloat16`` has no numpy type: it travels as ``uint16`` bits under the dtype
    name ``bfloat16`` in ``dtypes``. A payload received from a link may be a *view* into shared memory, valid until the
    end of the step in which it was delivered and read-only: whoever keeps it longer copies it.
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())


def text_payload(text: str) -> Payload:
    """A piece of text; the consumer joins pieces in order."""
    return Payload("text", {"text": text})


def pcm_payload(samples: np.ndarray[Any, Any], sample_rate: int, **meta: Any) -> Payload:
    """Mono float32 samples in [-1, 1], shape [n], at ``sample_rate`` Hz."""
    return Payload("pcm", {"sample_rate": sample_rate, **meta}, {"samples": samples})
