"""Names that have moved to another module, found by their old address with a :class:`DeprecationWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module whose names live elsewhere now::

        __getattr__ = moved_names(__name__, {"OldName": "omni_actors.new.module:NewName"})

    Args:
        module: The name of the module in which the old names were.
        homes: The new address of each old name, as ``module:name``.

    Returns:
        A function that imports the object from its new address and warns once for each line of code that asks. Other
        names raise :class:`AttributeError`, as in any module.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = homes[name].partition(":")
        warnings.warn(f"{module}.{name} is now {home}.{new}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), new)

    return find
