"""Files that other programs read: the pixels come back, and the request's section decides the rest."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.media.writing.harness import PictureHarness, UInt8, noise, pixels_of, smooth

from omni_actors.media.worker.pictures.png import write_png
from omni_actors.protocol.errors import OmniError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@pytest.fixture(scope="module")
def harness() -> PictureHarness:
    return PictureHarness()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("format", ["png", "webp"])
@pytest.mark.parametrize("compression", [None, 100])
def test_lossless_files_give_every_bit_back(
    harness: PictureHarness, format: str, channels: int, compression: int | None
) -> None:
    pixels = noise(37, 53, channels)
    data = harness.write(pixels, format=format, compression=compression)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == format.upper()
        assert not {"exif", "icc_profile", "xmp", "Seed", "Comment"} & image.info.keys()
        grey_as_colour = format == "webp" and channels == 1
        assert image.mode == ("RGB" if grey_as_colour else MODES[channels])
    assert np.array_equal(pixels_of(data), np.repeat(pixels, 3, axis=2) if grey_as_colour else pixels)


@pytest.mark.parametrize(("format", "mode"), [("jpeg", "L"), ("webp", "RGB")])
def test_grey_is_grey(harness: PictureHarness, format: str, mode: str) -> None:
    pixels = smooth(40, 60, 1)
    data = harness.write(pixels, format=format, compression=90)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == mode
    assert np.abs(pixels_of(data).astype(int) - pixels).mean() < 3


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_compression_is_the_quality(harness: PictureHarness, format: str) -> None:
    pixels = smooth(80, 120)
    files = {quality: harness.write(pixels, format=format, compression=quality) for quality in (0, 30, 60, 95)}
    assert sorted(files, key=lambda quality: len(files[quality])) == [0, 30, 60, 95]
    errors = [np.abs(pixels_of(data).astype(int) - pixels).mean() for data in files.values()]
    assert sorted(errors, reverse=True) == errors
    assert errors[-1] < 3


def test_compression_is_the_effort_of_a_png(harness: PictureHarness) -> None:
    pixels = smooth(64, 64)
    stored = harness.write(pixels, compression=0)
    assert len(stored) > pixels.nbytes
    assert len(harness.write(pixels, compression=100)) < len(stored) / 2
    assert np.array_equal(pixels_of(stored), pixels)


@pytest.mark.parametrize(("format", "background"), [("jpeg", None), ("png", "opaque"), ("webp", "opaque")])
def test_an_opaque_picture_lies_on_white(harness: PictureHarness, format: str, background: str | None) -> None:
    pixels = np.zeros((16, 24, 4), np.uint8)
    pixels[:, 8:16, 3] = 128
    pixels[:, 16:, 3] = 255
    data = harness.write(pixels, format=format, background=background)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "RGB"
    columns = pixels_of(data)[8, [2, 12, 22]].astype(int)
    assert np.abs(columns - [[255], [127], [0]]).max() <= (0 if format != "jpeg" else 3)


def test_equal_pixels_are_equal_files_whatever_the_seed(harness: PictureHarness) -> None:
    pixels = noise(20, 20)
    harness.admit()
    for index in range(2):
        harness.feed(pixels, index=index, seed=1000 + index, end=index == 1)
    harness.run()
    (first, a), (second, b) = harness.files()
    assert a == b
    assert (first["seed"], second["seed"]) == (1000, 1001)
    harness.finished.clear()
    harness.chunks.clear()
    harness.consumed_of.clear()


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 4])),
    flat=st.booleans(),
    level=st.none() | st.integers(0, 9),
    seed=st.integers(0, 1 << 16),
)
def test_any_pixels_survive_a_png(shape: tuple[int, int, int], flat: bool, level: int | None, seed: int) -> None:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 3 if flat else 256, shape).astype(np.uint8)
    slices = write_png(pixels, level)
    rows = 0
    try:
        while True:
            rows += next(slices)
    except StopIteration as end:
        data = b"".join(end.value)
    assert rows == len(pixels)
    assert np.array_equal(pixels_of(data), pixels)


def test_a_png_of_many_bands_is_filtered_like_one_of_one() -> None:
    pixels = smooth(600, 500)
    reference = io.BytesIO()
    Image.fromarray(pixels).save(reference, "PNG")
    for level, share in ((None, 1.2), (6, 1.05)):
        *_, parts = _results(pixels, level)
        data = b"".join(parts)
        with Image.open(io.BytesIO(data)) as image:
            image.verify()
        assert np.array_equal(pixels_of(data), pixels)
        assert len(data) < share * len(reference.getvalue())


def _results(pixels: UInt8, level: int | None) -> list[Any]:
    """What the slices yield, and what they return."""
    slices = write_png(pixels, level)
    found: list[Any] = []
    try:
        while True:
            found.append(next(slices))
    except StopIteration as end:
        assert len(found) > 5
        return [*found, end.value]


@pytest.mark.parametrize(
    ("section", "param"),
    [
        ({"format": "gif"}, "output_format"),
        ({"format": "png", "compression": 101}, "output_compression"),
        ({"format": "png", "compression": -1}, "output_compression"),
        ({"background": "green"}, "background"),
        ({"format": "jpeg", "background": "transparent"}, "background"),
        ({"format": "webp", "width": 16_384, "height": 8}, "output_format"),
        ({"format": "jpeg", "width": 8, "height": 65_536}, "output_format"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    harness: PictureHarness, section: dict[str, Any], param: str
) -> None:
    with pytest.raises(OmniError) as caught:
        harness.admit(9, **section)
    assert (caught.value.info.status, caught.value.info.param) == (400, param)
    harness.assert_empty()


def test_transparency_that_a_model_does_not_make_is_refused() -> None:
    harness = PictureHarness()
    harness.admit(background="transparent")
    with pytest.raises(OmniError) as caught:
        harness.feed(noise(4, 4))
    assert (caught.value.info.status, caught.value.info.param) == (400, "background")
    harness.abort(0)
    harness.assert_empty()
