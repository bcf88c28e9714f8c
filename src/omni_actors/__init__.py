"""omni_actors serves models that are made of several parts, each part a supervised worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors.version import __version__

if TYPE_CHECKING:
    from omni_actors.entrypoints.offline import AsyncOmni, Omni, Output, open_omni
    from omni_actors.protocol.errors import OmniError
    from omni_actors.protocol.request import Request

_HOMES = {
    "AsyncOmni": "omni_actors.entrypoints.offline",
    "Omni": "omni_actors.entrypoints.offline",
    "OmniError": "omni_actors.protocol.errors",
    "Output": "omni_actors.entrypoints.offline",
    "Request": "omni_actors.protocol.request",
    "open_omni": "omni_actors.entrypoints.offline",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker that imports one engine, and `--help`, pay for nothing else.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AsyncOmni", "Omni", "OmniError", "Output", "Request", "__version__", "open_omni"]
