"""Cuts of a stage's input into other pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from omni_actors.connectors.payload import Payload

Split = Callable[[Payload, random.Random], Sequence[Payload]]


def split(payload: Payload, chance: random.Random) -> Sequence[Payload]:
    """Split a payload into random parts: a text between any two characters, tensors of equal length between any two
    rows. A payload with other metadata, or without a place to cut, stays whole."""
    if not payload.tensors and payload.meta.keys() == {"text"}:
        text = payload.meta["text"]
        return [Payload(payload.kind, {"text": part}) for part in _parts(text, chance)] or [payload]
    if payload.meta or payload.dtypes or not payload.tensors:
        return [payload]
    lengths = {len(array) if array.ndim else -1 for array in payload.tensors.values()}
    if len(lengths) != 1 or (length := lengths.pop()) < 2:
        return [payload]
    ends = [*sorted(chance.sample(range(1, length), chance.randrange(length))), length]
    starts = [0, *ends[:-1]]
    return [
        Payload(payload.kind, {}, {name: np.ascontiguousarray(it[start:end]) for name, it in payload.tensors.items()})
        for start, end in zip(starts, ends, strict=True)
    ]


def cut(payloads: Sequence[Payload], chance: random.Random, how: Split = split) -> list[Payload]:
    """Join and split payloads anew at random."""
    found: list[Payload] = []
    for payload in payloads:
        if found and chance.random() < 0.3 and (both := _join(found[-1], payload)) is not None:
            found[-1] = both
        else:
            found.append(payload)
    return [part for payload in found for part in how(payload, chance)]


def _join(one: Payload, two: Payload) -> Payload | None:
    if one.kind != two.kind or one.dtypes or two.dtypes or one.tensors.keys() != two.tensors.keys():
        return None
    if not one.tensors and one.meta.keys() == two.meta.keys() == {"text"}:
        return Payload(one.kind, {"text": one.meta["text"] + two.meta["text"]})
    if one.meta or two.meta or not one.tensors:
        return None
    pairs = {name: (one.tensors[name], two.tensors[name]) for name in one.tensors}
    if any(a.ndim == 0 or a.shape[1:] != b.shape[1:] or a.dtype != b.dtype for a, b in pairs.values()):
        return None
    return Payload(one.kind, {}, {name: np.concatenate(pair) for name, pair in pairs.items()})


def _parts(text: str, chance: random.Random) -> list[str]:
    if len(text) < 2:
        return [text] if text else []
    ends = [*sorted(chance.sample(range(1, len(text)), chance.randrange(len(text)))), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
