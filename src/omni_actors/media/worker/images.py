"""Decoding of any image file to RGB, eight bits a channel.

The bytes decide the format of a file; its declared type does not. Only :data:`FORMATS` are opened, because readers of
rarer formats are where image libraries have their holes. The size in the header is checked before a pixel is decoded,
so that a small file with a huge declared size costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from omni_actors.media.limits import Limits
from omni_actors.media.worker.audio import BodyFile
from omni_actors.media.worker.decoder_thread import DecoderThread
from omni_actors.media.worker.held import Reserve, UInt8
from omni_actors.media.worker.jpeg import MAX_SCANS, is_endless
from omni_actors.protocol.errors import OmniError, invalid_request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The accepted formats, by Pillow's names. The first frame stands for an animation."""

_WORKING_BYTES = 12
"""Bytes per pixel that decoding holds at once: Pillow's own copies (four each) and the array."""
_BAND = 1 << 18
"""Pixels that one call copies: a copy holds the interpreter, and with the interpreter all other work."""
_ORIENTATION = 0x0112


def unreadable(reason: str, param: str | None) -> OmniError:
    return invalid_request(f"The image cannot be used: {reason}.", param, "invalid_image")


class _Stoppable(BodyFile):
    """A file that, once stopped, ends its reader at the next read."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True

    def read(self, size: int | None = -1) -> bytes:
        if self.stopped:
            raise OSError("stopped")
        return super().read(size)


def decode_image(
    pieces: Sequence[bytes],
    decoder_thread: DecoderThread,
    reserve: Reserve,
    limits: Limits,
    param: str | None,
    within: int | None,
) -> Generator[None, None, UInt8]:
    """Decode an image to uint8 [height, width, 3] RGB, upright by its EXIF orientation, transparency on white.

    With ``within`` the image is shrunk to fit a square with ``within`` pixels a side. ``reserve`` accounts for the
    memory. Pillow decodes in long calls, which ``decoder_thread`` makes. Raises :class:`OmniError` (400) for a bad
    file, a truncated file included.
    """
    source = _Stoppable(pieces)
    if not source.size:
        raise unreadable("it is empty", param)
    try:
        image = yield from decoder_thread.run(lambda: _open(source), source.stop)
    except Exception:  # A damaged header can fail in any way that Python knows.
        raise unreadable("it is damaged or in a format that this server does not read", param) from None
    if image is None:
        raise unreadable(f"it has more than {MAX_SCANS} scans", param)
    with image:
        width, height = image.size
        if width * height > limits.max_image_pixels:
            raise unreadable(f"it has {width} × {height} pixels, of at most {limits.max_image_pixels:,}", param)
        reserve.hold(width * height * _WORKING_BYTES)
        try:
            pixels = yield from decoder_thread.run(lambda: _pixels(image, within), source.stop)
        except Exception:
            raise unreadable("it is damaged", param) from None
    reserve.hold(pixels.nbytes)
    return pixels


def _open(source: BodyFile) -> Image.Image | None:
    """Open an image; return ``None`` for an image with an unbounded amount of work."""
    if is_endless(source):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a size that is checked next, of EXIF that is damaged
        return Image.open(cast(IO[bytes], source), formats=FORMATS)


def _pixels(image: Image.Image, within: int | None) -> UInt8:
    flat = _flat(_upright(image))
    if within is not None and max(flat.size) > within:
        flat.thumbnail((within, within), Image.Resampling.BICUBIC)
    width, height = flat.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        pixels[top : top + rows] = np.asarray(flat.crop((0, top, width, min(height, top + rows))))
    return pixels


def _upright(image: Image.Image) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.load()
        try:
            turned = image.getexif().get(_ORIENTATION, 1) != 1
        except Exception:  # Its EXIF is damaged, the image is not.
            return image
        return ImageOps.exif_transpose(image) if turned else image


def _flat(image: Image.Image) -> Image.Image:
    """Convert an image to RGB of eight bits a channel, with transparency on white."""
    if image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    clear = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(clear, mask=clear.getchannel("A"))
    return white


def _eight_bits(gray: npt.NDArray[Any]) -> UInt8:
    eight: UInt8 = (np.clip(gray, 0, 0xFFFF).astype(np.uint16) >> 8).astype(np.uint8)
    return eight
