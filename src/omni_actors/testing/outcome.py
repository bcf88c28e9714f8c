"""The output of a stage for one request, and a comparison of two runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import Usage

TOLERANCE = 1e-4
"""Allowed difference of floating-point numbers, relative to full scale."""


@dataclass
class Outcome:
    """The output for one request. ``payloads`` went to the next stages, ``text`` (by choice) and ``sound`` (or other
    media, as bytes) to the client. Without an ``error`` the request finished, with its ``usage``."""

    payloads: list[Payload] = field(default_factory=list)
    text: dict[int, str] = field(default_factory=dict)
    sound: bytes = b""
    usage: Usage | None = None
    error: ErrorInfo | None = None

    def difference(self, other: Outcome) -> str:
        """Return a sentence about the first difference to another outcome; empty if both are the same. The cutting of
        output into pieces makes no difference."""
        if (self.error is None) != (other.error is None):
            return f"one run failed ({(self.error or other.error)}), the other did not"
        if self.error is not None and other.error is not None:
            same = self.error.status == other.error.status
            return "" if same else f"one run failed with {self.error}, the other with {other.error}"
        if self.text != other.text:
            return f"one run said {self.text!r}, the other {other.text!r}"
        if found := _sound_difference(self.sound, other.sound):
            return found
        return _payload_difference(_joined(self.payloads), _joined(other.payloads))


def _sound_difference(one: bytes, two: bytes) -> str:
    if len(one) != len(two):
        return f"one run gave {len(one)} bytes of media, the other {len(two)}"
    if one == two or len(one) % 2:
        return "" if one == two else "the bytes of media differ"
    apart = np.abs(np.frombuffer(one, "<i2").astype(np.int32) - np.frombuffer(two, "<i2")).max()
    return "" if apart <= max(1, TOLERANCE * 32767) else f"their sound differs by up to {apart} of 32767"


def _joined(payloads: list[Payload]) -> dict[str, Any]:
    """Return all payloads as one: texts and tensors joined, by kind and name."""
    found: dict[str, Any] = {}
    for payload in payloads:
        if isinstance(text := payload.meta.get("text"), str):
            found[f"{payload.kind}.text"] = found.get(f"{payload.kind}.text", "") + text
        for name in payload.tensors:
            found.setdefault(f"{payload.kind}.{name}", []).append(np.asarray(payload.tensors[name]))
    return {name: _concatenated(value) if isinstance(value, list) else value for name, value in found.items()}


def _concatenated(arrays: list[np.ndarray[Any, Any]]) -> Any:
    try:
        return np.concatenate(arrays) if arrays[0].ndim else np.stack(arrays)
    except ValueError:
        return arrays


def _payload_difference(one: dict[str, Any], two: dict[str, Any]) -> str:
    if one.keys() != two.keys():
        return f"one run emitted {sorted(one)}, the other {sorted(two)}"
    for name, value in one.items():
        if isinstance(value, str) or isinstance(two[name], str):
            if value != two[name]:
                return f"'{name}' is {value!r} in one run and {two[name]!r} in the other"
            continue
        pairs = list(zip(value, two[name], strict=False)) if isinstance(value, list) else [(value, two[name])]
        for mine, theirs in pairs:
            if np.shape(mine) != np.shape(theirs):
                return f"'{name}' has shape {list(np.shape(mine))} in one run and {list(np.shape(theirs))} in the other"
            if not np.allclose(mine, theirs, rtol=0, atol=TOLERANCE * max(1.0, float(np.abs(mine).max(initial=0)))):
                return f"the numbers of '{name}' differ"
    return ""
