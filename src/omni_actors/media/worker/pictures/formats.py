"""The formats of finished pictures, and the way from pixels to a file.

========  ============================================================  ==================================
format    without ``compression``                                       with ``compression``
========  ============================================================  ==================================
PNG       lossless, fast                                                the effort: 0 stores, 100 packs most
WebP      lossless                                                      the quality; 100 is lossless
JPEG      quality 95                                                    the quality
========  ============================================================  ==================================

Grey stays grey, except in WebP, which has no grey. Transparency stays in PNG and WebP unless ``background`` is
``opaque``; an opaque picture lies on white. A file holds no metadata, so that equal pixels are equal files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
from PIL import Image

from omni_actors.media.worker.pictures.png import UInt8, write_png
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import ImageGeneration

FORMATS = ("png", "webp", "jpeg")

_MOST_SIDE = {"png": (1 << 31) - 1, "webp": 16_383, "jpeg": 65_535}
_WORKING_BYTES = {"png": 0, "webp": 36, "jpeg": 12}
"""Bytes for each pixel that writing holds at once, beside the pixels: copies, tables, and the file. The file of a PNG
is counted apart, by its channels."""
_PREVIEW_QUALITY = 80
_JPEG_QUALITY = 95
_FINE_QUALITY = 90
"""The lowest quality at which a JPEG keeps colour at full resolution."""
_BAND = 1 << 18
"""Pixels that one call prepares: more would hold the interpreter for too long."""
PREVIEW_SIDE = 512
"""Longest side of a preview in pixels, if its maker names none."""
MOST_PREVIEW_SIDE = 1024
"""The longest side that its maker may name; a longer one is shrunk to this. The file then fits one frame."""


class Stopped(Exception):
    """Raised in a call whose picture nobody wants any more."""


@dataclass(frozen=True, slots=True)
class Manner:
    """The manner in which a request's pictures are written: ``format``, ``compression`` and ``background`` of
    :class:`~omni_actors.protocol.params.ImageGeneration`."""

    format: str
    compression: int | None
    background: str | None

    def channels(self, own: int) -> int:
        """Return the channels of the file of a picture with ``own`` channels."""
        opaque = self.format == "jpeg" or self.background == "opaque"
        return 3 if (own == 4 and opaque) or (own == 1 and self.format == "webp") else own

    def check_size(self, width: int, height: int) -> None:
        """Raise an error with status 400 for a picture that is too large for the format."""
        most = _MOST_SIDE[self.format]
        if max(width, height) > most:
            name = self.format.upper() if self.format != "webp" else "WebP"
            raise invalid_request(
                f"A picture of {width}x{height} pixels cannot be written as {name}: a side has at most {most} pixels.",
                "output_format",
            )

    def check_channels(self, own: int) -> None:
        """Raise an error with status 400 if transparency is asked for and the pictures have none."""
        if self.background == "transparent" and own != 4:
            raise invalid_request("This model's pictures have no transparent background.", "background")

    def working_bytes(self, height: int, width: int, own: int) -> int:
        """Return the most bytes that writing a picture takes, beside its pixels."""
        file = height * (width * self.channels(own) + 1) + (height << 3) if self.format == "png" else 0
        return file + height * width * _WORKING_BYTES[self.format]


def manner_of(image: ImageGeneration) -> Manner:
    """Return the manner of a request. Raises :class:`OmniError` (400) for one that cannot be."""
    if image.format not in FORMATS:
        raise _unknown("output_format", image.format, FORMATS)
    if image.compression is not None and not 0 <= image.compression <= 100:
        raise invalid_request("'output_compression' must be from 0 to 100.", "output_compression")
    if image.background not in (None, "transparent", "opaque"):
        raise _unknown("background", str(image.background), ("transparent", "opaque"))
    if image.format == "jpeg" and image.background == "transparent":
        raise invalid_request("A transparent background needs the format png or webp.", "background")
    manner = Manner(image.format, image.compression, image.background)
    manner.check_size(image.width or 1, image.height or 1)
    return manner


def _unknown(field: str, value: str, known: tuple[str, ...]) -> OmniError:
    return invalid_request(f"'{field}' is {value[:40]!r}; it must be one of: {', '.join(known)}.", field)


def shrunk(pixels: UInt8, side: int) -> UInt8:
    """Return a copy of a preview, shrunk so that its longest side has at most ``side`` pixels."""
    height, width, _ = pixels.shape
    longest = max(height, width)
    if longest <= side:
        return pixels.copy()
    skip = max(1, longest // (2 * side))  # every pixel of a large picture would be read for nothing
    image = _image(pixels[::skip, ::skip])
    size = max(1, round(width * side / longest)), max(1, round(height * side / longest))
    small = np.asarray(image.resize(size, Image.Resampling.BOX))
    return small.reshape(*small.shape[:2], -1)


def png_slices(pixels: UInt8, manner: Manner, preview: bool) -> Generator[int, None, list[bytes]]:
    """Write a PNG in slices; each yields the number of rows that are done."""
    own = pixels.shape[2]
    channels = manner.channels(own)
    level = None if preview or manner.compression is None else round(manner.compression * 9 / 100)
    return write_png(pixels, level, channels, on_white if channels != own else None)


def write_whole(pixels: UInt8, manner: Manner, preview: bool, stopped: Callable[[], bool]) -> list[bytes]:
    """Write a WebP or a JPEG in one call, for a thread.

    Raises:
        Stopped: ``stopped()`` became true. A JPEG ends within some 64 KiB of output, a WebP when it is written.
    """
    image = _image(_opaque(pixels, manner, stopped))
    sink = _Sink(stopped)
    image.save(cast(IO[bytes], sink), manner.format.upper(), **_options(manner, preview))
    return sink.parts


def _options(manner: Manner, preview: bool) -> dict[str, Any]:
    if manner.format == "jpeg":
        quality = _JPEG_QUALITY if manner.compression is None else max(1, manner.compression)
        quality = _PREVIEW_QUALITY if preview else quality
        return {"quality": quality, "subsampling": 0 if quality >= _FINE_QUALITY else 2}
    if preview:
        return {"quality": _PREVIEW_QUALITY, "method": 0}
    if manner.compression in (None, 100):
        return {"lossless": True, "quality": 20, "method": 1, "exact": True}
    return {"quality": manner.compression, "method": 2}


def _opaque(pixels: UInt8, manner: Manner, stopped: Callable[[], bool]) -> UInt8:
    height, width, own = pixels.shape
    if own != 4 or manner.channels(own) == 4:
        return pixels
    found = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        if stopped():
            raise Stopped
        found[top : top + rows] = on_white(pixels[top : top + rows])
    return found


def on_white(pixels: UInt8) -> UInt8:
    """Return pixels [rows, width, 4] laid on white: [rows, width, 3]."""
    colour, alpha = pixels[..., :3].astype(np.uint16), pixels[..., 3:].astype(np.uint16)
    laid: UInt8 = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return laid


def _image(pixels: UInt8) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


class _Sink:
    """A file that keeps what is written, and ends its writer once nobody wants the file."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self.parts: list[bytes] = []
        self._stopped = stopped

    def write(self, data: bytes) -> int:
        if self._stopped():
            raise Stopped
        self.parts.append(data)
        return len(data)
