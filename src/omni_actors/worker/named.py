"""Classes that a deployment names by dotted string, imported here, in the worker."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from omni_actors.connectors.connector import Connector, DeviceMemoryConnector, SharedMemory, Tcp
from omni_actors.connectors.device import CONNECTOR, DeviceMemory
from omni_actors.plugins.contract import CONTRACT, contract_trouble
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.engine import Engine
from omni_actors.worker.returned import kind_of

T = TypeVar("T")

Contract = Literal["none", "if stated", "stated"]


def class_named(dotted: str, base: Callable[..., T], role: str, contract: Contract = "none") -> Callable[..., T]:
    """Return the class called ``dotted`` (``package.module:Class``), which must be a concrete subclass of ``base``.

    ``role`` is the purpose of the class, for messages. ``contract`` says whether the class must state the version of a
    contract.

    Raises :class:`OmniError`, with the name in the message, for anything else: a module that cannot be imported, a
    missing name, a function, another class, a class with abstract methods.
    """
    found, kind = thing_named(dotted, role), cast(type[T], base)
    if not isinstance(found, type):
        raise unfit(role, dotted, f"is {kind_of(found)}, and not a subclass of {kind.__name__}")
    if not issubclass(found, kind):
        raise unfit(role, dotted, f"is not a subclass of {kind.__name__}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise unfit(role, dotted, f"does not define {', '.join(missing)}")
    if contract != "none" and (why := contract_trouble(found, role, CONTRACT, required=contract == "stated")):
        raise unfit(role, dotted, why)
    return found


def engine_named(hello: Hello) -> Callable[[Hello], Engine]:
    """Return the class of the worker's engine. Raises :class:`OmniError` also for an engine written for another version
    of the contract, and for an engine announced by name in a plug-in that states no version."""
    return class_named(hello.engine, Engine, "engine", "stated" if hello.announced else "if stated")


def connectors_of(hello: Hello, memory: DeviceMemory | None) -> dict[str, Connector]:
    """Return the connectors of the worker's edges, by the stage at their other end. Raises :class:`OmniError` for a
    plug-in's class that is not a connector."""
    classes: dict[str, Callable[..., Connector]] = {"shared_memory": SharedMemory, "tcp": Tcp}
    classes[CONNECTOR] = DeviceMemoryConnector
    made: dict[str, Connector] = {}
    found: dict[str, Connector] = {}
    edges = (*((it.source, it) for it in hello.inputs), *((it.target, it) for it in hello.outputs))
    for stage, edge in edges:
        name = edge.connector
        if name not in made:
            dotted = edge.connector_class
            kind = class_named(dotted, Connector, "connector", "stated") if dotted else classes.get(name, SharedMemory)
            made[name] = kind(hello, memory)
        found[stage] = made[name]
    return found


def bridge_named(dotted: str) -> Callable[[], Bridge]:
    """Return the factory of an edge's bridge. Raises :class:`OmniError` when the factory cannot be imported or
    called."""
    found = thing_named(dotted, "bridge")
    if not callable(found):
        raise unfit("bridge", dotted, f"is {kind_of(found)}, and not a class or function that makes a Bridge")
    factory: Callable[[], Bridge] = found
    return factory


def thing_named(dotted: str, role: str) -> Any:
    """Import and return the object called ``dotted``. Raises :class:`OmniError` when it cannot be imported."""
    try:
        return pkgutil.resolve_name(dotted)
    except Exception as error:
        raise unfit(role, dotted, f"cannot be imported: {type(error).__name__}: {error}") from error


def unfit(role: str, dotted: str, why: str) -> OmniError:
    """Return the error for a name that a stage cannot use."""
    return OmniError(ErrorInfo(message=f"{role} '{dotted}' {why}", code="bad_class", status=500))
