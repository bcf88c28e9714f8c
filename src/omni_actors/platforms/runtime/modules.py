"""The torch modules of a family's adapter, for platforms that prepare modules once they are loaded."""

from __future__ import annotations

from typing import Any

import torch


def modules_of(adapter: Any) -> list[torch.nn.Module]:
    """Return the modules that a family's adapter holds, directly or in objects of this package."""
    found: list[torch.nn.Module] = []
    waiting, seen = [adapter], set[int]()
    while waiting:
        it = waiting.pop()
        if id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, torch.nn.Module):
            found.append(it)
        elif isinstance(it, dict):
            waiting += it.values()
        elif isinstance(it, (list, tuple, set)):
            waiting += it
        elif type(it).__module__.partition(".")[0] == __name__.partition(".")[0] or it is adapter:
            waiting += getattr(it, "__dict__", {}).values()
            waiting += (getattr(it, name) for name in getattr(type(it), "__slots__", ()) if hasattr(it, name))
    return found
