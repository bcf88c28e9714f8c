"""The options and capacities that a stage has by its engine kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from omni_actors.pipelines.declaration import Stage
from omni_actors.protocol import limits
from omni_actors.protocol.options import Option

_COMMON = {
    "max_inflight": limits.MAX_INFLIGHT,
    "max_inflight_tokens": limits.MAX_INFLIGHT_TOKENS,
    "arena_bytes": limits.ARENA_BYTES,
    "rest_after_s": limits.REST_AFTER_S,
}

_BY_KIND: dict[str, dict[str, Option]] = {
    "autoregressive": {"max_requests": limits.MAX_REQUESTS},
    "vllm": {"max_requests": limits.MAX_REQUESTS},
    "generation": {"max_batch": limits.MAX_BATCH, "max_requests": limits.MAX_REQUESTS},
    "diffusion": {"max_requests": limits.MAX_REQUESTS},
}


STEP_BUDGET_S = {"autoregressive": 120.0, "vllm": 120.0, "generation": 300.0, "diffusion": 300.0}
"""How long one step may take, by engine kind, before its worker counts as stuck: many times what the slowest takes on a
CPU, since a step that is cut short by mistake costs more than one that is waited for."""

OTHER_STEP_BUDGET_S = 300.0
"""The same of an engine by dotted name."""


def limits_of(engine: str) -> dict[str, Option]:
    """Return the capacities of a replica by name.

    Args:
        engine: An engine kind, or a dotted name: an engine of one's own has the capacities of the worker around it.

    Returns:
        Name of a limit → its :class:`Option`.
    """
    return {**_BY_KIND.get(engine, {}), **_COMMON}


_OPTIONS = {
    "autoregressive": "omni_actors.worker.engines.autoregressive.options",
    "vllm": "omni_actors.worker.engines.vllm.options",
    "diffusion": "omni_actors.worker.engines.diffusion.options",
}
"""Engine kind → the module beside the engine, without torch, that declares its ``OPTIONS`` (name → :class:`Option`),
and if its workers need one, their ``ENVIRONMENT``."""


def options_of(kind: str) -> dict[str, Option]:
    """Return the options that every stage of an engine kind has, without ``sampling``, which is a group of its own.

    Args:
        kind: An engine kind; a kind without a module of options, or a dotted name, has none.

    Returns:
        Option name → :class:`Option`.
    """
    if kind not in _OPTIONS:
        return {}
    options: Mapping[str, Option] = import_module(_OPTIONS[kind]).OPTIONS
    return {name: option for name, option in options.items() if name != "sampling"}


def environment_of(kind: str) -> dict[str, str]:
    """Return the environment variables that the workers of an engine kind need."""
    return dict(getattr(import_module(_OPTIONS[kind]), "ENVIRONMENT", {})) if kind in _OPTIONS else {}


def with_engine_options(stage: Stage) -> Stage:
    """Return the stage with the options of its engine kind, or of the kinds that its engine runs, beside its own.

    A stage that declares an option of its engine again changes what it states: its default and, where they are given,
    the documentation, type and bound.
    """
    for kind in (stage.engine, *stage.runs):
        stage = replace(stage, options={**joined(options_of(kind), stage.options)})
    return stage


def joined(usual: Mapping[str, Option], own: Mapping[str, Option]) -> dict[str, Option]:
    """Return the usual options and a stage's own.

    Args:
        usual: Options of an engine.
        own: Options of a stage. Where both have one of a name, the stage's default holds, and of the stage's other
            fields those that are given.

    Returns:
        The options by name, the usual ones first.

    Example:
        >>> usual = {"max_tokens": Option(None, "Most tokens of an answer.", type=int, least=1)}
        >>> joined(usual, {"max_tokens": Option(512)})["max_tokens"]
        Option(default=512, doc='Most tokens of an answer.', type=<class 'int'>, least=1, choices=(), aliases=())
    """
    found = {**usual, **own}
    for name in usual.keys() & own.keys():
        first, second = usual[name], own[name]
        found[name] = Option(
            second.default,
            second.doc or first.doc,
            type=second.type or first.type,
            least=first.least if second.least is None else second.least,
            choices=second.choices or first.choices,
            aliases=tuple(dict.fromkeys((*first.aliases, *second.aliases))),
        )
    return found
