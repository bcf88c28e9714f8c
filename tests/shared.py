"""Files that one process of a test run makes for all of them: what costs seconds is computed once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

Once = Callable[[str, Callable[[Path], None]], Path]
"""The type of the fixture ``shared_once``: a name and a function that writes the file → the path of the file."""


def once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return the path of a file of this run, after the first process to ask has made it.

    Args:
        folder: A folder of this run alone.
        name: The file's name.
        make: The function that writes the file; the other processes wait until it returns.
    """
    path = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            make(unfinished)
            unfinished.rename(path)
    return path
