"""The check of a plug-in's class, run as a subprocess probe (:mod:`omni_actors.plugins.probe`)."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from omni_actors.platforms.inspection import Broken, attempt, check_untouched
from omni_actors.plugins.contract import contract_trouble


def answer(argument: dict[str, Any]) -> dict[str, Any]:
    """Examine a plug-in's class.

    Args:
        argument: ``value`` is the class's dotted name, ``base`` the dotted name of its required base class, ``word``
            the kind's name in messages, and ``contract`` the version of the contract.

    Returns:
        ``{"broken": sentence}``, or an empty dict for a class without faults.
    """
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
