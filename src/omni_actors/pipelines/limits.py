"""Capacities of one replica, by engine kind: names, defaults and meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageLimit:
    """``default`` is a whole number; names that end in ``_bytes`` are bytes. 0 lets the engine choose."""

    default: int
    doc: str


_COMMON = {
    "max_requests": StageLimit(1024, "Requests that the worker holds at once, waiting ones included; over it, 429."),
    "arena_bytes": StageLimit(256 << 20, "Shared memory for payloads on their way to other workers."),
}

_BY_KIND = {
    "autoregressive": {
        "max_batch": StageLimit(32, "Requests that take part in one step."),
    },
    "generation": {
        "max_batch": StageLimit(8, "Compatible items that run as one batch."),
    },
}


def limits_of(engine: str) -> dict[str, StageLimit]:
    """The limits of an engine kind; a dotted name has the common ones and ``max_batch``."""
    own = _BY_KIND.get(engine, {"max_batch": StageLimit(8, "Requests that take part in one step.")})
    return {**own, **_COMMON}
