"""PNG files, written in slices.

Libraries write a PNG in one call, which takes seconds for a large picture. Here a slice is a band of rows, so that
other pictures have their turns in between, and the work for an aborted request ends within one band.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator, Iterator

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's colour type by the number of channels: grey, RGB, RGBA."""
_BAND = 96 << 10
"""Bytes of a band, some milliseconds of work."""
_LEVEL = 6
_IDAT = 256 << 10
"""Compressed bytes of a chunk, about."""
Prepare = Callable[[UInt8], UInt8]
"""A function that makes a band [rows, width, channels] ready for the file."""


def write_png(
    pixels: UInt8, level: int | None = None, channels: int | None = None, prepare: Prepare | None = None
) -> Generator[int, None, list[bytes]]:
    """Write a PNG of eight bits a channel without metadata, and return the file's parts in order. Each slice yields
    the number of its rows.

    Args:
        pixels: The picture [height, width, 1, 3 or 4]. It must not change before the generator has ended.
        level: The effort of zlib, from 0 (none) to 9; ``None`` looks for runs of equal bytes only, which takes a fifth
            of the time. Once filtered, photographs and what models paint hold few other repetitions: measured, a noisy
            picture's file is as small as with level 6, and that of the smoothest one a tenth larger.
        channels: The channels of the file, if ``prepare`` changes their number.
        prepare: Called with each band of rows before the band is written.
    """
    height, width, own = pixels.shape
    channels = channels or own
    strategy = zlib.Z_RLE if level is None else zlib.Z_FILTERED
    packer = zlib.compressobj(_LEVEL if level is None else level, zlib.DEFLATED, 15, 8, strategy)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    parts = [_SIGNATURE + _chunk(b"IHDR", header)]
    held: list[bytes] = []
    size = 0
    above = np.zeros(width * channels, np.uint8)
    for band in _bands(pixels):
        rows = (band if prepare is None else prepare(band)).reshape(len(band), width * channels)
        data = packer.compress(_filtered(rows, above, channels).data)
        above = rows[-1]
        if data:
            held.append(data)
            size += len(data)
        if size >= _IDAT:
            parts.append(_chunk(b"IDAT", b"".join(held)))
            held.clear()
            size = 0
        yield len(rows)
    held.append(packer.flush())
    parts.append(_chunk(b"IDAT", b"".join(held)) + _chunk(b"IEND", b""))
    return parts


def _bands(pixels: UInt8) -> Iterator[UInt8]:
    rows = max(1, _BAND // pixels[:1].nbytes)
    for top in range(0, len(pixels), rows):
        yield pixels[top : top + rows]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))


def _filtered(rows: UInt8, above: UInt8, step: int) -> UInt8:
    """Return the rows as PNG stores them: each behind the number of its filter.

    Of the filters the one is taken for a row whose differences are smallest in sum, as the PNG specification advises.

    Args:
        rows: The bytes of a band [rows, width × channels].
        above: The row before the band; zeros at the top.
        step: The distance in bytes to the pixel on the left.
    """
    up = np.empty_like(rows)
    up[0] = above
    up[1:] = rows[:-1]
    left = np.zeros_like(rows)
    left[:, step:] = rows[:, :-step]
    corner = np.zeros_like(rows)
    corner[:, step:] = up[:, :-step]
    average = (left & up) + ((left ^ up) >> 1)  # rounded down, without a wider type
    candidates = (rows, rows - left, rows - up, rows - average, rows - _paeth(left, up, corner))
    best = np.stack([_cost(it) for it in candidates]).argmin(axis=0)
    found = np.empty((len(rows), 1 + rows.shape[1]), np.uint8)
    found[:, 0] = best
    for number, differences in enumerate(candidates):
        chosen = best == number
        found[chosen, 1:] = differences[chosen]
    return found


def _paeth(left: UInt8, up: UInt8, corner: UInt8) -> UInt8:
    """Return Paeth's guess: whichever of the three is nearest to left + up - corner, the first one of equals."""
    a, b, c = left.astype(np.int16), up.astype(np.int16), corner.astype(np.int16)
    by_left, by_up = np.abs(b - c), np.abs(a - c)
    by_corner = np.abs(a + b - 2 * c)
    nearest = np.where(by_up <= by_corner, up, corner)
    guess: UInt8 = np.where((by_left <= by_up) & (by_left <= by_corner), left, nearest)
    return guess


def _cost(differences: UInt8) -> npt.NDArray[np.int64]:
    """Return the sum of each row's differences, each read as a number from -128 to 127 without its sign."""
    cost: npt.NDArray[np.int64] = np.minimum(differences, -differences).sum(axis=1, dtype=np.int64)
    return cost
