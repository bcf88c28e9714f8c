"""What each kind of engine can be told: capacities of a replica, and where the engine documents its own options."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class StageLimit:
    """``default`` is a whole number; names that end in ``_bytes`` are bytes. 0 lets the engine choose."""

    default: int
    doc: str


_COMMON = {
    "arena_bytes": StageLimit(256 << 20, "Shared memory for payloads on their way to other workers."),
}

_MAX_REQUESTS = StageLimit(1024, "Requests that the worker holds at once, waiting ones included; over it, 429.")

_BY_KIND: dict[str, dict[str, StageLimit]] = {
    "autoregressive": {"max_requests": _MAX_REQUESTS},
    "generation": {
        "max_batch": StageLimit(8, "Compatible items that run as one batch."),
        "max_requests": _MAX_REQUESTS,
    },
}


def limits_of(engine: str) -> dict[str, StageLimit]:
    """The limits of an engine kind; an engine by dotted name has those of the worker around it, and its own options."""
    return {**_BY_KIND.get(engine, {}), **_COMMON}


_OPTIONS = {"autoregressive": "omni_actors.worker.engines.ar_options"}
"""Engine kind → the module beside the engine with ``OPTIONS`` (option → default) and ``OPTIONS_DOC``, without torch."""


def engine_options(engine: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The options that every stage of an engine kind has, with a sentence for each. Sampling is a group of its own."""
    if engine not in _OPTIONS:
        return {}, {}
    module = import_module(_OPTIONS[engine])
    defaults = {name: default for name, default in module.OPTIONS.items() if name != "sampling"}
    return defaults, {name: module.OPTIONS_DOC[name] for name in defaults}
