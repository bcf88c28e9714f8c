"""Pictures to edit and their masks: transparency is kept where it is asked for, and a mask fits its picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.media.harness import MediaHarness
from tests.media.pictures import UInt8, encoded, huge_png, noise, png

from omni_actors.media import questions as q
from omni_actors.media.worker import images
from omni_actors.protocol.errors import OmniError

ALPHA = q.How(alpha=True)
CLEAR = np.dstack([noise(30, 40), np.tile(np.arange(40, dtype=np.uint8) * 6, (30, 1))])


def pixels(data: bytes, how: q.How = ALPHA) -> UInt8:
    harness = MediaHarness()
    info = harness.keep(data, modality="image", how=how)
    (payload,) = harness.payloads([info.id])
    harness.assert_empty()
    found = payload.tensors["pixels"]
    assert (info.width, info.height) == (found.shape[1], found.shape[0])
    assert payload.meta == {"index": 0, "length": len(found)}
    return found


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_transparency_is_kept_bit_for_bit(format: str) -> None:
    data = encoded(Image.fromarray(CLEAR), format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    assert np.array_equal(pixels(data), CLEAR)
    assert pixels(data, q.How()).shape == (30, 40, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "RGB", "I;16"])
def test_an_image_without_transparency_is_opaque(mode: str) -> None:
    grey = np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50
    if mode == "I;16":
        image = Image.fromarray(grey)
    else:
        image = Image.fromarray(noise(30, 40)).convert(mode)
    data = encoded(image, "JPEG" if mode == "CMYK" else "PNG", **({"quality": 100} if mode == "CMYK" else {}))
    found = pixels(data)
    assert found.shape == (30, 40, 4)
    assert found[..., 3].min() == 255
    assert np.array_equal(found[..., :3], pixels(data, q.How()))
    if mode == "I;16":
        assert np.array_equal(found[..., 0], (grey >> 8).astype(np.uint8))


def test_palettes_grey_and_sixteen_bits_have_transparency_too() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    for format in ("PNG", "GIF"):
        found = pixels(encoded(palette, format, transparency=0))
        assert found[0, :, 3].tolist() == [0, 255]
        assert found[0, 1].tolist() == [40, 50, 60, 255]
    grey = Image.fromarray(CLEAR).convert("LA")
    assert np.array_equal(pixels(encoded(grey, "PNG"))[..., 3], CLEAR[..., 3])
    deep = Image.fromarray(np.array([[7, 4660]], np.uint16))
    assert pixels(encoded(deep, "PNG", transparency=7))[0].tolist() == [[0, 0, 0, 0], [18, 18, 18, 255]]


def test_a_picture_to_edit_stands_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.array_equal(pixels(png(CLEAR, exif=exif)), np.rot90(CLEAR, -1))


def test_the_first_frame_stands_for_an_animation() -> None:
    frames = [Image.fromarray(np.full((8, 8, 4), (value, 0, 0, value), np.uint8)) for value in (200, 100)]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert pixels(data)[0, 0].tolist() == [200, 0, 0, 200]


def test_a_small_detail_keeps_transparency() -> None:
    found = pixels(png(CLEAR), q.How(alpha=True, within=20))
    assert found.shape == (15, 20, 4)
    assert 0 < found[..., 3].mean() < 255


# Masks.


def refused(data: bytes, how: q.How, harness: MediaHarness | None = None) -> str:
    harness = harness or MediaHarness()
    with pytest.raises(OmniError) as caught:
        harness.keep(data, modality="image", param="mask", how=how)
    harness.assert_empty()
    assert (caught.value.info.status, caught.value.info.param) == (400, "mask")
    return caught.value.info.message


def test_a_mask_keeps_its_transparency() -> None:
    assert np.array_equal(pixels(png(CLEAR), q.How(mask_of=(40, 30))), CLEAR)


def test_a_mask_of_another_size_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("a pixel is decoded")

    monkeypatch.setattr(images, "_pixels", never)
    assert "40x30" in refused(png(CLEAR), q.How(mask_of=(64, 64)))
    assert "2000x2000" in refused(huge_png(2000, 2000), q.How(mask_of=(40, 30)))
    assert "no transparent" in refused(png(noise(30, 40)), q.How(mask_of=(40, 30)))


def test_a_mask_that_is_turned_or_opaque_is_refused_when_it_is_decoded() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.array_equal(pixels(png(CLEAR, exif=exif), q.How(mask_of=(30, 40))), np.rot90(CLEAR, -1))
    assert "30x40" in refused(png(CLEAR, exif=exif), q.How(mask_of=(40, 30)))
    opaque = CLEAR.copy()
    opaque[..., 3] = 255
    assert "no transparent" in refused(png(opaque), q.How(mask_of=(40, 30)))


def test_the_limit_on_pixels_holds_for_pictures_to_edit() -> None:
    message = refused(huge_png(40, 40), ALPHA, MediaHarness(max_image_pixels=1000))
    assert "40 × 40" in message
