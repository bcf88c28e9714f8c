"""The amount of work in a JPEG.

A progressive JPEG paints its pixels in scans. Each scan is work for every pixel, and a scan without a change has forty
bytes, so a file of one megabyte could keep its decoder busy for an hour.
"""

from __future__ import annotations

import re
from typing import Protocol

MAX_SCANS = 100
"""Scans of one image, at most. Encoders write one to a dozen scans."""

_MAX_SEGMENTS = 10_000
_WINDOW = 4096
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
"""A marker: neither a restart within a scan, nor a 0xFF of compressed data, which a zero follows."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_WITHOUT_LENGTH = (0x01, 0xD8)


class File(Protocol):
    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int | None = -1, /) -> bytes: ...


def is_endless(file: File) -> bool:
    """Whether a file is a JPEG of more than :data:`MAX_SCANS` scans in its first image.

    Other images in the file (previews, a phone's video) are not examined.
    """
    file.seek(0)
    if file.read(2) != b"\xff\xd8":
        return False
    at, scans = 2, 0
    for _ in range(_MAX_SEGMENTS):
        at = _next_marker(file, at)
        file.seek(at)
        head = file.read(4)
        if len(head) < 2 or head[1] == _END_OF_IMAGE:
            return False
        if head[1] == _START_OF_SCAN:
            scans += 1
            if scans > MAX_SCANS:
                return True
        at += 2 if head[1] in _WITHOUT_LENGTH else 2 + int.from_bytes(head[2:])
    return True


def _next_marker(file: File, at: int) -> int:
    """Return the place of the next marker from ``at`` on, or the end of the file."""
    while True:
        file.seek(at)
        window = file.read(_WINDOW)
        if found := _MARKER.search(window):
            return at + found.start()
        if len(window) < _WINDOW:
            return at + len(window)
        at += len(window) - 1  # its last byte may be a marker's first


def is_endless_frame(data: bytes) -> bool:
    """Whether one frame of a video is a JPEG of more than :data:`MAX_SCANS` scans."""
    return data.count(b"\xff\xda") > MAX_SCANS
