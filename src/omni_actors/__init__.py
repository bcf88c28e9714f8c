"""omni_actors serves models that are made of several parts, each part a supervised worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors.version import __version__

if TYPE_CHECKING:
    from omni_actors.entrypoints.embedding import http_app, serve_http
    from omni_actors.entrypoints.offline import (
        AsyncioOmni,
        AsyncOmni,
        Choice,
        Omni,
        Output,
        open_omni,
        open_omni_asyncio,
    )
    from omni_actors.entrypoints.options import ServerOptions
    from omni_actors.protocol.errors import OmniError
    from omni_actors.protocol.params import Sampling
    from omni_actors.protocol.request import Request

_OFFLINE = "omni_actors.entrypoints.offline"
_HOMES = {
    "AsyncOmni": _OFFLINE,
    "AsyncioOmni": _OFFLINE,
    "Choice": _OFFLINE,
    "Omni": _OFFLINE,
    "OmniError": "omni_actors.protocol.errors",
    "Output": _OFFLINE,
    "Request": "omni_actors.protocol.request",
    "Sampling": "omni_actors.protocol.params",
    "ServerOptions": "omni_actors.entrypoints.options",
    "http_app": "omni_actors.entrypoints.embedding",
    "open_omni": _OFFLINE,
    "open_omni_asyncio": _OFFLINE,
    "serve_http": "omni_actors.entrypoints.embedding",
}


def __getattr__(name: str) -> Any:
    # Lazy: a worker that imports one engine, and `--help`, pay for nothing else.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncOmni",
    "AsyncioOmni",
    "Choice",
    "Omni",
    "OmniError",
    "Output",
    "Request",
    "Sampling",
    "ServerOptions",
    "__version__",
    "http_app",
    "open_omni",
    "open_omni_asyncio",
    "serve_http",
]
