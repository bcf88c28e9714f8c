"""The cache folder for kernels compiled by a worker's packages."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from omni_actors.cache import cache_root

FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "TRITON_CACHE_DIR": "triton"}
"""Environment variable → folder. By default these packages use a folder of a known name in ``/tmp``, which torch
creates on every import, and a folder in the home directory."""


def keep_what_is_compiled(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that are not set yet, in this process, before torch is imported.

    The variables stay unset if the cache cannot be written: torch fails without a writable folder.
    """
    place = cache_root() / "compiled"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(place, os.W_OK | os.X_OK):
        for variable, folder in FOLDERS.items():
            environment.setdefault(variable, str(place / folder))
