"""The cache directory of this package: weights, compiled code, findings about plug-ins."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "OMNI_ACTORS_CACHE"
"""Environment variable: the path of the cache directory."""


def cache_root() -> Path:
    """Return the cache directory: ``$OMNI_ACTORS_CACHE``, else ``~/.cache/omni-actors`` (or below
    ``$XDG_CACHE_HOME``)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "omni-actors"
