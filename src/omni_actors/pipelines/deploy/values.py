"""Checks of the values in a deploy file.

Each check takes the value as YAML gives it, and returns the value to keep. For any other value it raises ``ValueError``
with a text that begins with ``takes``; the message around it says which key the value is for.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from typing import Any

from omni_actors.pipelines.extensions import Extension
from omni_actors.pipelines.nearest import closest

Check = Callable[[Any], Any]

LARGEST_INTEGER = (1 << 63) - 1


def text(value: Any) -> str:
    """Take a text with at least one character."""
    if not isinstance(value, str) or not value:
        raise ValueError("takes a text")
    return value


def strings(value: Any) -> tuple[str, ...]:
    """Take a list of texts with at least one element.

    >>> strings(["cuda:0", "cuda:1"])
    ('cuda:0', 'cuda:1')
    """
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("takes a list of texts")
    return tuple(value)


def address(value: Any) -> str:
    """Take the IP address of one network interface.

    >>> address("127.0.0.1")
    '127.0.0.1'
    >>> address("0.0.0.0")
    Traceback (most recent call last):
    ValueError: takes the IP address of one interface
    """
    try:
        found = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("takes an IP address in numbers") from None
    if found.is_unspecified or found.is_multicast:  # workers listen on the address, and other workers connect to it
        raise ValueError("takes the IP address of one interface")
    return str(found)


def environment(value: Any) -> dict[str, str]:
    """Take environment variables: a mapping of names to texts or numbers.

    >>> environment({"OMP_NUM_THREADS": 4})
    {'OMP_NUM_THREADS': '4'}
    """
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise ValueError("takes a mapping of names to values")
    if bad := [k for k, v in value.items() if not isinstance(v, str | int | float) or isinstance(v, bool)]:
        raise ValueError(f"takes texts and numbers as values; put quotes around the value of {bad[0]}")
    if bad := [k for k, v in value.items() if not k or "=" in k or "\0" in f"{k}{v}"]:
        raise ValueError(f"takes names and values that the system allows, which {bad[0]!r} is not")
    return {k: str(v) for k, v in value.items()}


def integer(least: int, most: int = LARGEST_INTEGER) -> Callable[[Any], int]:
    """Make a check for a whole number.

    Args:
        least: The smallest number that the check accepts.
        most: The largest number that the check accepts.

    Example:
        >>> integer(1)(8)
        8
        >>> integer(1)(0)
        Traceback (most recent call last):
        ValueError: takes a whole number of at least 1
    """

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"takes a whole number of at least {least}")
        if value > most:
            raise ValueError(f"takes a whole number of at most {most}")
        return value

    return check


def optional(check: Check) -> Check:
    """Make a check that also accepts null.

    >>> optional(integer(1))(None) is None
    True
    """
    return lambda value: None if value is None else check(value)


def number(least: float, most: float | None = None) -> Callable[[Any], float]:
    """Make a check for a finite number.

    Args:
        least: The smallest number that the check accepts.
        most: The largest number that the check accepts; ``None`` for no bound.

    Example:
        >>> number(0, 1)(1)
        1.0
    """

    def check(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or value < least or (most is not None and value > most):
            raise ValueError(f"takes a number of at least {least:g}" + (f" and at most {most:g}" if most else ""))
        return float(value)

    return check


def one_of(*choices: str) -> Callable[[Any], str]:
    """Make a check for one of a few texts.

    >>> one_of("chunk", "full")("part")
    Traceback (most recent call last):
    ValueError: takes chunk or full
    """

    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"takes {' or '.join(choices)}")
        return str(value)

    return check


def one_named(extension: Extension) -> Callable[[Any], str]:
    """Make a check for the name of a built-in class of a kind, or of one that an installed plug-in brings."""

    def check(value: Any) -> str:
        if value in (names := extension.names()):
            return str(value)
        near = closest(str(value), names)
        raise ValueError(f"takes {' or '.join(names)}" + (f" (did you mean '{near}'?)" if near else ""))

    return check


_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_of(least: int) -> Callable[[Any], int]:
    """Make a check for a number of bytes: a whole number, or a text with a unit.

    >>> size_of(0)("64 MiB"), size_of(0)(0)
    (67108864, 0)
    >>> size_of(128)(64)
    Traceback (most recent call last):
    ValueError: takes a number of bytes of at least 128
    """

    def check(value: Any) -> int:
        if isinstance(value, str) and (match := re.fullmatch(r"(\d+)\s*([A-Za-z]*)", value.strip())):
            unit = _UNITS.get(match[2].upper())
            value = int(match[1]) * unit if unit else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value < least <= 1):
            raise ValueError("takes a number of bytes, such as 67108864 or 64MiB")
        if value < least:
            raise ValueError(f"takes a number of bytes of at least {least}")
        return value

    return check


size = size_of(1)
"""A check for a number of bytes of at least 1."""


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a mapping"}


def like(default: Any, kind: type | None = None, least: float | None = None) -> Check:
    """Make a check for a value of the same type as a default.

    Args:
        default: The default, whose type the value must have. A whole number is taken as a ``float``, a list as a tuple.
        kind: The type of the value where null is accepted too; ``None`` for the default's type, without null.
        least: The smallest number that the check accepts. Numbers must be finite.

    Example:
        >>> like(1.0, least=0.5)(2)
        2.0
        >>> like(64, least=1)(0)
        Traceback (most recent call last):
        ValueError: takes a whole number of at least 1, as its default 64 is
    """
    nullable = default is None or kind is not None
    wanted = type(default) if kind is None else kind
    takes = f"takes {_KINDS.get(wanted, 'a list')}" + ("" if least is None else f" of at least {least:g}")
    takes += ", or null" if nullable else f", as its default {default!r} is"

    def check(value: Any) -> Any:
        if nullable and value is None:
            return None
        if wanted is float and type(value) is int:
            value = float(value)
        elif wanted is tuple and type(value) is list:
            value = tuple(value)
        if type(value) is not wanted:
            raise ValueError(takes)
        if isinstance(value, int | float) and (not math.isfinite(value) or (least is not None and value < least)):
            raise ValueError(takes)
        return value

    return check
