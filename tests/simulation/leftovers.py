"""How many things every table, queue and parking lot of the serving process holds, whatever it is called."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import trio

KEPT = frozenset({"_classes", "_affinities", "_anew", "refused"})
"""Bounded memories of what was asked before, and counters by reason."""

FACTS = frozenset({"Plan", "StagePlan", "Subgraph", "Pipeline", "Supervisor", "Channel", "ReplicaHistory", "Watch"})
"""Classes that hold nothing of a request, belong to one life of a worker, or are a bounded history."""


def sizes(root: object) -> dict[str, int]:
    """The size of each container that is reachable from an object of ours, by the path that leads to it."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while todo:
        path, it = todo.pop()
        if id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, trio.lowlevel.ParkingLot):
            found[path] = len(it)
        elif isinstance(it, dict):
            found[path] = len(it)
            todo += [(f"{path}[{key if isinstance(key, str) else '…'}]", value) for key, value in it.items()]
        elif isinstance(it, (list, set, tuple, deque)):
            if not isinstance(it, tuple) and getattr(it, "maxlen", None) is None:
                found[path] = len(it)
            todo += [(f"{path}[{i}]", value) for i, value in enumerate(it)]
        elif _ours(it):
            todo += [
                (f"{path}.{name}", getattr(it, name)) for name in _names(it) if name not in KEPT and hasattr(it, name)
            ]
    return found


def leftovers(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What has grown."""
    return [
        f"{path} holds {size}, it held {before[path]}" for path, size in after.items() if size > before.get(path, size)
    ]


def _ours(it: object) -> bool:
    kind = type(it)
    return (
        kind.__module__.startswith("omni_actors.") and kind.__name__ not in FACTS and not isinstance(it, msgspec.Struct)
    )


def _names(it: object) -> list[str]:
    names = list(getattr(it, "__dict__", ()))
    for kind in type(it).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name != "__dict__"]
