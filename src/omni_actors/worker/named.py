"""Classes that a deployment names by dotted string, imported here, in the worker."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar, cast

from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.returned import kind_of

T = TypeVar("T")


def class_named(dotted: str, base: Callable[..., T], role: str) -> Callable[[Hello], T]:
    """The class called ``dotted`` (``package.module:Class``), which must be a whole subclass of ``base``. ``role`` says
    what it is for.

    Raises :class:`OmniError`, whose message names it, for anything else: a module that cannot be imported, a name that
    is not there, a function, another class, a class with methods left to define.
    """
    found, kind = thing_named(dotted, role), cast(type[T], base)
    if not isinstance(found, type):
        raise unfit(role, dotted, f"is {kind_of(found)}, and not a subclass of {kind.__name__}")
    if not issubclass(found, kind):
        raise unfit(role, dotted, f"is not a subclass of {kind.__name__}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise unfit(role, dotted, f"does not define {', '.join(missing)}")
    return found


def bridge_named(dotted: str) -> Callable[[], Bridge]:
    """The factory of an edge's bridge. Raises :class:`OmniError` when it cannot be imported or called."""
    found = thing_named(dotted, "bridge")
    if not callable(found):
        raise unfit("bridge", dotted, f"is {kind_of(found)}, and not a class or function that makes a Bridge")
    factory: Callable[[], Bridge] = found
    return factory


def thing_named(dotted: str, role: str) -> Any:
    """What is called ``dotted``. Raises :class:`OmniError` when it cannot be imported."""
    try:
        return pkgutil.resolve_name(dotted)
    except Exception as error:
        raise unfit(role, dotted, f"cannot be imported: {type(error).__name__}: {error}") from error


def unfit(role: str, dotted: str, why: str) -> OmniError:
    """The error for a name that a stage cannot use."""
    return OmniError(ErrorInfo(message=f"{role} '{dotted}' {why}", code="bad_class", status=500))
