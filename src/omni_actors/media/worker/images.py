"""Decoding of any image file to RGB or RGBA, eight bits a channel.

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
from omni_actors.media.questions import How
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
    how: How,
) -> Generator[None, None, UInt8]:
    """Decode an image to uint8 [height, width, 3] RGB, upright by its EXIF orientation, transparency on white; with
    ``how.alpha`` to [height, width, 4] RGBA.

    With ``how.within`` the image is shrunk to fit a square with so many pixels a side. ``reserve`` accounts for the
    memory. Pillow decodes in long calls, which ``decoder_thread`` makes.

    Raises:
        OmniError: 400 for a bad file, a truncated file included, and for a mask that does not fit its picture. What
            the header tells is refused before a pixel is decoded.
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
        if how.mask_of is not None:
            _check_mask_head(image, how.mask_of, param)
        reserve.hold(width * height * _WORKING_BYTES)
        try:
            pixels = yield from decoder_thread.run(lambda: _pixels(image, how), source.stop)
        except Exception:
            raise unreadable("it is damaged", param) from None
    if how.mask_of is not None:
        _check_mask(pixels, how.mask_of, param)
    reserve.hold(pixels.nbytes)
    return pixels


def _check_mask_head(image: Image.Image, size: tuple[int, int], param: str | None) -> None:
    """Refuse a mask by what its header tells. A mask may still be turned by its EXIF orientation."""
    if image.size not in (size, size[::-1]):
        raise _other_size(image.size, size, param)
    if not image.has_transparency_data:
        raise _opaque_mask(param)


def _check_mask(pixels: UInt8, size: tuple[int, int], param: str | None) -> None:
    found = (pixels.shape[1], pixels.shape[0])
    if found != size:
        raise _other_size(found, size, param)
    if pixels[..., 3].min() == 255:
        raise _opaque_mask(param)


def _other_size(found: tuple[int, int], size: tuple[int, int], param: str | None) -> OmniError:
    return invalid_request(
        f"The mask has {found[0]}x{found[1]} pixels, and its picture {size[0]}x{size[1]}; they must be equal.", param
    )


def _opaque_mask(param: str | None) -> OmniError:
    return invalid_request("The mask has no transparent pixels: those are the ones to be changed.", param)


def _open(source: BodyFile) -> Image.Image | None:
    """Open an image; return ``None`` for an image with an unbounded amount of work."""
    if is_endless(source):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a size that is checked next, of EXIF that is damaged
        return Image.open(cast(IO[bytes], source), formats=FORMATS)


def _pixels(image: Image.Image, how: How) -> UInt8:
    alpha = how.alpha or how.mask_of is not None
    flat = _clear(_upright(image)) if alpha else _flat(_upright(image))
    if how.within is not None and how.mask_of is None and max(flat.size) > how.within:
        flat.thumbnail((how.within, how.within), Image.Resampling.BICUBIC)
    width, height = flat.size
    pixels = np.empty((height, width, 4 if alpha else 3), np.uint8)
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


def _clear(image: Image.Image) -> Image.Image:
    """Convert an image to RGBA of eight bits a channel. An image without transparency is opaque."""
    if not image.mode.startswith("I"):
        return image if image.mode == "RGBA" else image.convert("RGBA")
    grey = np.asarray(image)
    clear = Image.fromarray(_eight_bits(grey)).convert("RGBA")
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        clear.putalpha(Image.fromarray(np.where(grey == transparent, 0, 255).astype(np.uint8)))
    return clear


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
