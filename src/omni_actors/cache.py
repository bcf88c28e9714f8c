"""Where this package keeps what it makes for later: weights, compiled code, what plug-ins were found to be."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "OMNI_ACTORS_CACHE"
"""Environment variable: the cache directory."""


def cache_root() -> Path:
    """The cache directory: ``$OMNI_ACTORS_CACHE``, else ``~/.cache/omni-actors`` (by ``$XDG_CACHE_HOME``)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "omni-actors"
