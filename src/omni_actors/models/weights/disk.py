"""Disk space: the check before a download, and the error message for a full disk."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

_FULL = re.compile(r"No space left on device|Disk quota exceeded|\bErrno (?:28|122)\b|\bos error (?:28|122)\b")


def free_bytes(folder: Path) -> int:
    """Return the bytes that the user can still write at ``folder``, existing or not."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def is_full(error: BaseException) -> bool:
    """Return whether an exception is about a full disk, by its number or by another process's message."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return _FULL.search(str(error)) is not None


def shortage(what: str, needed: int, folder: Path) -> str:
    """Return the sentence about a full disk, with numbers."""
    free = free_bytes(folder)
    return f"The disk is too full for {what}: that needs {as_text(needed)}, and {as_text(free)} are free in {folder}."


def as_text(size: float) -> str:
    """Format a number of bytes for people."""
    if size < 1e9:
        return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB"
