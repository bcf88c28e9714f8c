"""A plug-in's class, examined in a process of its own: see :mod:`omni_actors.plugins.probe`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from omni_actors.platforms.inspection import Broken, attempt, check_untouched
from omni_actors.plugins.contract import contract_trouble


def answer(argument: dict[str, Any]) -> dict[str, Any]:
    """``{"broken": sentence}``, or nothing else to say. ``base`` is the dotted name of the class that it must derive
    from, ``word`` what that is called, ``contract`` its version."""
    value = argument["value"]
    try:
        _look(value, argument)
        check_untouched(value)
    except Broken as broken:
        return {"broken": str(broken)}
    return {}


def _look(value: str, argument: dict[str, Any]) -> None:
    base = resolve_name(argument["base"])
    kind = attempt("cannot be imported", resolve_name, value)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise Broken(f"{value} is no subclass of {base.__name__}")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise Broken(f"{value} does not define {', '.join(missing)}")
    if trouble := contract_trouble(kind, argument["word"], argument["contract"]):
        raise Broken(f"it {trouble}")
