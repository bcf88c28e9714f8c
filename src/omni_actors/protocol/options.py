"""The description of one option of a deployment: its default, its type, its bounds and its documentation.

Stages, engines, platforms and the limits of a replica declare their options as a mapping of names to :class:`Option`.
The schema of a deploy file, ``explain``, the reference pages and the engines all read the same mapping, so a default is
written in one place.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option that a deploy file or ``--set`` may change.

    An option takes a value of its default's type. ``type`` makes an option nullable: the option then takes a value of
    that type, or ``None``. An option whose default is ``None`` must therefore have a ``type``.

    Args:
        default: The value when nobody sets the option.
        doc: One sentence for ``explain`` and the reference pages.
        type: The type of a nullable option; ``None`` for the default's own type.
        least: The smallest number that the option takes; ``None`` for no bound.
        choices: The only texts that the option takes; empty for any.
        aliases: Further names under which a deploy file or ``--set`` may set the option, such as vLLM's name for it.

    Example:
        >>> speed = Option(1.0, "Factor of the speaking rate.", least=0.25)
        >>> width = Option(None, "Most columns; by default the model's own.", type=int, least=1)
        >>> defaults_of({"speed": speed, "width": width})
        {'speed': 1.0, 'width': None}
    """

    default: Any
    doc: str = ""
    type: builtins.type | None = field(default=None, kw_only=True)
    least: float | None = field(default=None, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    aliases: tuple[str, ...] = field(default=(), kw_only=True)


def defaults_of(options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the default of every option.

    Args:
        options: The options by name.

    Returns:
        A new dict: option name → default.
    """
    return {name: option.default for name, option in options.items()}


def filled(options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values, and the default of every option that has none.

    Args:
        options: The options by name.
        given: Values by option name. Names that are no options are kept.

    Returns:
        A new dict: option name → value.

    Example:
        >>> filled({"step_s": Option(0.5), "load_s": Option(2.0)}, {"step_s": 1.0})
        {'step_s': 1.0, 'load_s': 2.0}
    """
    return {**defaults_of(options), **given}


def with_defaults(options: Mapping[str, Option], **defaults: Any) -> dict[str, Option]:
    """Return the options with other defaults for some of them.

    Args:
        options: The options by name.
        defaults: The new default of each option that changes.

    Returns:
        A new dict; the options keep their order, types, bounds and documentation.

    Raises:
        KeyError: A name is none of the options.

    Example:
        >>> with_defaults({"max_batch": Option(8, "Most items of a batch.")}, max_batch=2)["max_batch"].default
        2
    """
    return {**options, **{name: replace(options[name], default=value) for name, value in defaults.items()}}


def options_from(
    defaults: Mapping[str, Any],
    doc: Mapping[str, str],
    type: Mapping[str, builtins.type],
    least: Mapping[str, float],
    choices: Mapping[str, tuple[str, ...]],
) -> dict[str, Option]:
    """Return the options that the parallel dicts of the earlier plug-in contract declare.

    Args:
        defaults: Option name → default, or → :class:`Option`, whose fields then stand where the other dicts are silent.
        doc: Option name → sentence.
        type: Option name → type of an option that also takes ``None``.
        least: Option name → smallest number.
        choices: Option name → the only texts that the option takes.

    Returns:
        One :class:`Option` per entry of ``defaults``. Entries of the other dicts without a default are left out.
    """
    found = {}
    for name, value in defaults.items():
        option = value if isinstance(value, Option) else Option(value)
        found[name] = replace(
            option,
            doc=doc.get(name, option.doc),
            type=type.get(name, option.type),
            least=least.get(name, option.least),
            choices=tuple(choices.get(name, option.choices)),
        )
    return found
