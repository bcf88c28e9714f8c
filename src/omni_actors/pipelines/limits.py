"""What each kind of engine can be told: capacities of a replica, and where the engine documents its own options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from omni_actors.connectors.shared_memory import ARENA_BYTES
from omni_actors.pipelines.declaration import Stage


@dataclass(frozen=True, slots=True)
class StageLimit:
    """``default`` is a whole number of at least 1, or ``None``: then the limit may be left open. Names that end in
    ``_bytes`` are bytes."""

    default: int | None
    doc: str


_COMMON = {
    "max_inflight": StageLimit(
        None, "Requests admitted to it at once; by default what it can batch, and a little more."
    ),
    "max_inflight_tokens": StageLimit(None, "Estimated tokens of those requests; by default as many as come."),
    "arena_bytes": StageLimit(ARENA_BYTES, "Shared memory for payloads on their way to other workers."),
    "rest_after_s": StageLimit(10, "Seconds without work after which a worker gives memory kept for reuse back."),
}

_MAX_REQUESTS = StageLimit(1024, "Requests that the worker holds at once, waiting ones included; over it, 429.")

_BY_KIND: dict[str, dict[str, StageLimit]] = {
    "autoregressive": {"max_requests": _MAX_REQUESTS},
    "vllm": {"max_requests": _MAX_REQUESTS},
    "generation": {
        "max_batch": StageLimit(8, "Compatible items that run as one batch."),
        "max_requests": _MAX_REQUESTS,
    },
}


STEP_BUDGET_S = {"autoregressive": 120.0, "vllm": 120.0, "generation": 300.0}
"""How long one step may take, by engine kind, before its worker counts as stuck: many times what the slowest takes on a
CPU, since a step that is cut short by mistake costs more than one that is waited for."""

OTHER_STEP_BUDGET_S = 300.0
"""The same of an engine by dotted name."""


def limits_of(engine: str) -> dict[str, StageLimit]:
    """The limits of an engine kind; an engine by dotted name has those of the worker around it, and its own options."""
    return {**_BY_KIND.get(engine, {}), **_COMMON}


_OPTIONS = {
    "autoregressive": "omni_actors.worker.engines.ar_options",
    "vllm": "omni_actors.worker.engines.vllm_options",
}
"""Engine kind → the module beside the engine, without torch, that says what :class:`Stage` does of its options:
``OPTIONS`` (option → default), ``OPTIONS_DOC``, ``OPTIONS_TYPE`` and ``OPTIONS_LEAST``. And if it has one,
``ENVIRONMENT``, of its workers."""


def options_of(kind: str) -> dict[str, Any]:
    """Option → default, of every stage of an engine kind. Sampling is a group of its own."""
    if kind not in _OPTIONS:
        return {}
    options: dict[str, Any] = import_module(_OPTIONS[kind]).OPTIONS
    return {name: default for name, default in options.items() if name != "sampling"}


def environment_of(kind: str) -> dict[str, str]:
    """What the workers of an engine kind need in their environment."""
    return dict(getattr(import_module(_OPTIONS[kind]), "ENVIRONMENT", {})) if kind in _OPTIONS else {}


def with_engine_options(stage: Stage) -> Stage:
    """The stage with the options that every stage of its engine kind has, or of the kinds that its engine runs."""
    for kind in (stage.engine, *stage.runs):
        if kind not in _OPTIONS:
            continue
        module = import_module(_OPTIONS[kind])
        defaults = options_of(kind)
        stage = replace(
            stage,
            defaults=defaults | stage.defaults,
            options_doc={name: module.OPTIONS_DOC[name] for name in defaults} | stage.options_doc,
            options_type=module.OPTIONS_TYPE | stage.options_type,
            options_least=module.OPTIONS_LEAST | stage.options_least,
        )
    return stage
