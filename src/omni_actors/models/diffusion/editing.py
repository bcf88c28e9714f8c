"""The adapter of families that edit pictures: the client's pictures and mask on the port ``pictures``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.diffusion.adapter import DiffusersAdapter
from omni_actors.models.diffusion.pixels import Pixels
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.checks import TensorSpec, check_input
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import ENCODE
from omni_actors.worker.engines.diffusion.cursor import Cursor

PORT = "pictures"

_PICTURE = {"pixels": TensorSpec("uint8", (None, None, None))}


class EditingAdapter(DiffusersAdapter):
    """A family that edits the client's pictures.

    The port gets the pictures in order, and behind them the mask, if there is one. Transparent pixels of the mask are
    to be changed; all other pixels of the first picture stay as they are.
    """

    encodes_pictures = True
    fewest_pictures: ClassVar[int] = 1
    most_pictures: ClassVar[int] = 1
    takes_mask: ClassVar[bool] = False

    def check(self, work: Work, image: ImageGeneration) -> None:
        super().check(work, image)
        fewest, most = self.fewest_pictures, self.most_pictures
        if not fewest <= image.pictures <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise invalid_request(f"This model takes {wanted} pictures, and there are {image.pictures}.", "image")
        if image.mask and not self.takes_mask:
            raise invalid_request("This model takes no mask.", "mask")

    def feed(self, cursors: Sequence[Cursor], port: str, payload: Payload | None, end: bool) -> None:
        if port == PORT and payload is not None:
            check_picture(payload)
        super().feed(cursors, port, payload, end)
        if port == PORT and end:
            self._arrived(cursors)

    def _arrived(self, cursors: Sequence[Cursor]) -> None:
        image = cursors[0].image
        count = len(cursors[0].inputs.get(PORT, ()))
        if count != image.pictures + image.mask:
            raise RuntimeError(f"{count} pictures came instead of {image.pictures} and {int(image.mask)} masks")
        asked = cursors[0].work.params.get("image") or image
        if asked.width is None and asked.height is None:
            size = self.size_for([_size(payload) for payload in cursors[0].inputs[PORT][: image.pictures]])
            for cursor in cursors:
                cursor.width, cursor.height = size
                cursor.image.width, cursor.image.height = size
                cursor.weight = self.tokens(cursor.image) * self.branch_count(cursor.image)

    def size_for(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the size of the new picture from the sizes (width, height) of the client's, if the client names
        none."""
        return self.size

    def pictures(self, cursor: Cursor, mode: str = "RGB") -> list[PIL.Image.Image]:
        """Return the client's pictures in a mode of PIL; transparency is laid on white if the mode has none."""
        payloads = cursor.inputs[PORT][: cursor.image.pictures]
        return [picture_of(payload, mode) for payload in payloads]

    def mask(self, cursor: Cursor) -> PIL.Image.Image | None:
        """Return the mask, white where the picture is to be changed; ``None`` without one."""
        return mask_of(cursor.inputs[PORT][-1]) if cursor.image.mask else None

    def begin(self, cursor: Cursor) -> None:
        if ENCODE in self.parts:
            cursor.inputs.clear()  # all that is needed of the pictures is in the conditioning
        super().begin(cursor)

    def feed_trial(self, cursor: Cursor) -> None:
        side = self.multiple * 4
        pixels = np.full((side, side, 3), 127, np.uint8)
        for index in range(cursor.image.pictures):
            payload = Payload("image", {"index": index}, {"pixels": pixels})
            self.feed([cursor], PORT, payload, index + 1 == cursor.image.pictures)

    def trial(self) -> ImageGeneration:
        trial = super().trial()
        trial.pictures = self.fewest_pictures
        return trial


class Kept:
    """The part of a picture that a mask protects."""

    @staticmethod
    def state(picture: PIL.Image.Image, mask: PIL.Image.Image, width: int, height: int) -> dict[str, Any]:
        """Return the picture and the mask at the size of the new picture, as tensors."""
        resized = (
            picture.resize((width, height), PIL.Image.Resampling.LANCZOS)
            if picture.size != (width, height)
            else picture
        )
        fitted = mask.resize((width, height), PIL.Image.Resampling.NEAREST)
        return {
            "original": torch.from_numpy(np.array(resized)),
            "change": torch.from_numpy(np.array(fitted) > 127),
        }

    @staticmethod
    def laid_over(pixels: Pixels, state: dict[str, Any]) -> Pixels:
        """Return new pixels with the original ones where the mask protects them."""
        original, change = state["original"].cpu().numpy(), state["change"].cpu().numpy()
        merged: Pixels = np.where(change[..., None], pixels, original)
        return merged


def _size(payload: Payload) -> tuple[int, int]:
    height, width = payload.tensors["pixels"].shape[:2]
    return width, height


def check_picture(payload: Payload) -> None:
    """Raise :class:`InputError` unless the payload is a client's picture."""
    check_input(payload, _PICTURE)


def picture_of(payload: Payload, mode: str) -> PIL.Image.Image:
    """Return a client's picture in a mode of PIL; transparency is laid on white if the mode has none."""
    pixels = payload.tensors["pixels"]
    picture = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    if picture.mode == "RGBA" and mode == "RGB":
        white = PIL.Image.new("RGBA", picture.size, "white")
        return PIL.Image.alpha_composite(white, picture).convert("RGB")
    return picture.convert(mode)


def mask_of(payload: Payload) -> PIL.Image.Image:
    """Return a client's mask, white where the picture is to be changed: where the mask is transparent.

    Raises:
        OmniError: The mask has no transparency.
    """
    pixels = payload.tensors["pixels"]
    if pixels.shape[2] != 4:
        raise invalid_request("The mask has no transparency, so it says nothing about what to change.", "mask")
    return PIL.Image.fromarray(np.where(pixels[..., 3] == 0, 255, 0).astype(np.uint8))
