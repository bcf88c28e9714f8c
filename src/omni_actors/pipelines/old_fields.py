"""The earlier way to declare a stage's options, which plug-ins may still use.

Four parallel dicts stood where :attr:`Stage.options` stands now: ``defaults``, ``options_doc``, ``options_type`` and
``options_least``. They can be given to a stage, and read from one, with a :class:`DeprecationWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from omni_actors.protocol.options import Option, options_from

S = TypeVar("S")

_READERS: Mapping[str, Callable[[Option], Any]] = {
    "defaults": lambda option: option.default,
    "options_doc": lambda option: option.doc or None,
    "options_type": lambda option: option.type,
    "options_least": lambda option: option.least,
}
"""Old field of a stage → what it says of one option; ``None`` where it is silent."""


def takes_old_fields(kind: type[S]) -> type[S]:
    """Let a class with a field ``options`` be made with the four old fields too, and give its objects those attributes.

    Args:
        kind: The dataclass; it is changed.

    Returns:
        ``kind``.
    """
    make: Callable[..., None] = kind.__init__

    @wraps(make)
    def init(self: S, *args: Any, **fields: Any) -> None:
        old = {name: fields.pop(name) for name in _READERS if name in fields}
        if old:
            names = ", ".join(old)
            warnings.warn(f"{kind.__name__}: give options instead of {names}", DeprecationWarning, stacklevel=2)
            fields["options"] = _joined(fields.get("options", {}), **old)
        make(self, *args, **fields)

    setattr(kind, "__init__", init)  # noqa: B010
    for name in _READERS:
        setattr(kind, name, property(_reader(kind.__name__, name)))
    return kind


def _joined(
    options: Mapping[str, Option],
    defaults: Mapping[str, Any] | None = None,
    options_doc: Mapping[str, str] | None = None,
    options_type: Mapping[str, type] | None = None,
    options_least: Mapping[str, float] | None = None,
) -> dict[str, Option]:
    """Return the options that a stage with ``options`` has after ``dataclasses.replace`` with the old fields."""
    if defaults is None:
        wanted: dict[str, Any] = dict(options)
    else:
        wanted = {name: replace(options.get(name, Option(it)), default=it) for name, it in defaults.items()}
    return options_from(wanted, options_doc or {}, options_type or {}, options_least or {}, {})


def _reader(kind: str, name: str) -> Callable[[Any], dict[str, Any]]:
    def read(self: Any) -> dict[str, Any]:
        warnings.warn(f"{kind}.{name}: read options instead", DeprecationWarning, stacklevel=2)
        found = {key: _READERS[name](option) for key, option in self.options.items()}
        return {key: value for key, value in found.items() if name == "defaults" or value is not None}

    return read
