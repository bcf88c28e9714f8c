"""Room on the disk: whether there is enough before a download, and what is said when it was not."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

_FULL = re.compile(r"No space left on device|Disk quota exceeded|\bErrno (?:28|122)\b|\bos error (?:28|122)\b")


def free_bytes(folder: Path) -> int:
    """Bytes that this user can still write where ``folder`` is, or will be."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def is_full(error: BaseException) -> bool:
    """Whether an exception is about a full disk, by its number or by the words of another process in it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return _FULL.search(str(error)) is not None


def shortage(what: str, needed: int, folder: Path) -> str:
    """The sentence about a disk that is too full, with numbers."""
    free = free_bytes(folder)
    return f"The disk is too full for {what}: that needs {as_text(needed)}, and {as_text(free)} are free in {folder}."


def as_text(size: float) -> str:
    """A number of bytes as people read it."""
    if size < 1e9:
        return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.1f} GB"
