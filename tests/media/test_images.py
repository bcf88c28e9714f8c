"""Images: whatever a client sends becomes RGB, upright and without transparency, or a 400 that says why not."""

from __future__ import annotations

import resource
import struct
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.media.harness import MediaHarness, container, tone, wav
from tests.media.pictures import UInt8, chunk, encoded, endless_jpeg, huge_png, noise, png

from omni_actors.media import questions as q
from omni_actors.media.worker import images
from omni_actors.media.worker.held import Job
from omni_actors.protocol.errors import OmniError

IMAGE = noise(30, 40)


def pixels(harness: MediaHarness, data: bytes, **hints: Any) -> UInt8:
    (payload,) = harness.payloads([harness.keep(data, modality="image", **hints).id])
    harness.assert_empty()
    assert payload.kind == "image"
    assert payload.meta == {"index": 0, "length": len(payload.tensors["pixels"])}
    return payload.tensors["pixels"]


def refused(harness: MediaHarness, data: bytes) -> OmniError:
    with pytest.raises(OmniError) as caught:
        harness.keep(data, modality="image", param="image_url.url")
    harness.assert_empty()
    info = caught.value.info
    assert (info.status, info.param) == (400, "image_url.url")
    assert len(info.message) < 200
    return caught.value


@pytest.mark.parametrize("format", ["PNG", "BMP", "JPEG", "WEBP", "GIF"])
def test_every_format_is_rgb(format: str) -> None:
    best: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}
    found = pixels(MediaHarness(), encoded(Image.fromarray(IMAGE), format, **best.get(format, {})))
    assert found.dtype == np.uint8
    assert found.shape == IMAGE.shape
    difference = np.abs(found.astype(int) - IMAGE).mean()
    assert difference == 0 if format in ("PNG", "BMP", "WEBP") else difference < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_stands_upright(orientation: int) -> None:
    turned: dict[int, Any] = {
        1: IMAGE,
        2: np.fliplr(IMAGE),
        3: np.rot90(IMAGE, 2),
        4: np.flipud(IMAGE),
        5: IMAGE.swapaxes(0, 1),
        6: np.rot90(IMAGE, -1),
        7: np.rot90(IMAGE, 2).swapaxes(0, 1),
        8: np.rot90(IMAGE),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(MediaHarness(), png(IMAGE, exif=exif))
    assert np.array_equal(found, turned[orientation])


def test_an_image_with_damaged_exif_is_taken_as_it_is() -> None:
    assert np.array_equal(pixels(MediaHarness(), png(IMAGE, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")), IMAGE)


def test_transparency_is_white_and_half_of_it_half() -> None:
    clear = np.zeros((1, 3, 4), np.uint8)
    clear[0, :, 3] = (0, 128, 255)
    assert pixels(MediaHarness(), png(clear))[0].tolist() == [[255] * 3, [127] * 3, [0] * 3]
    gray = Image.fromarray(clear).convert("LA")
    assert pixels(MediaHarness(), encoded(gray, "PNG"))[0].tolist() == [[255] * 3, [127] * 3, [0] * 3]
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    data = encoded(palette, "PNG", transparency=0)
    assert pixels(MediaHarness(), data)[0].tolist() == [[255] * 3, [40, 50, 60]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_other_colour_spaces_become_rgb(mode: str) -> None:
    image = Image.fromarray(IMAGE).convert(mode)
    found = pixels(MediaHarness(), encoded(image, "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"))
    assert np.abs(found.astype(int) - np.asarray(image.convert("RGB"))).mean() < 4


def test_sixteen_bits_keep_the_upper_eight() -> None:
    deep = np.array([[0, 0x1234, 0xFFFF]], np.uint16)
    assert pixels(MediaHarness(), png(deep))[0].tolist() == [[0] * 3, [0x12] * 3, [255] * 3]


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    lossless = {"lossless": True} if format == "WEBP" else {}
    found = pixels(MediaHarness(), encoded(frames[0], format, save_all=True, append_images=frames[1:], **lossless))
    assert (found == (255, 0, 0)).all()


def test_an_image_can_be_shrunk_into_a_square() -> None:
    tall = noise(600, 300)
    assert pixels(MediaHarness(), png(tall), how=q.How(within=64)).shape == (64, 32, 3)
    assert np.array_equal(pixels(MediaHarness(), png(tall), how=q.How(within=600)), tall)


def test_a_large_image_arrives_whole() -> None:
    large = np.random.default_rng(1).integers(0, 256, (1500, 1501, 3), np.uint8)
    assert np.array_equal(pixels(MediaHarness(), png(large, compress_level=0)), large)


# What is no image, or a trap.


def header(width: int, height: int) -> bytes:
    """A PNG's header chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


GOOD = png(IMAGE)
BAD = {
    "empty": b"",
    "text": b"not an image at all, and long enough to look like something",
    "html": b"<!doctype html><title>Sign in</title>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "sound": wav(tone(0.1)),
    "webm": container("webm", "libopus", tone(0.1, 48_000)),
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "tiff": encoded(Image.fromarray(IMAGE), "TIFF"),
    "cut png": GOOD[: len(GOOD) // 2],
    "cut jpeg": encoded(Image.fromarray(noise(200, 200)), "JPEG")[:2000],
    "cut webp": encoded(Image.fromarray(noise(200, 200)), "WEBP", quality=99)[:900],
    "header alone": GOOD[:40],
    "no pixels": GOOD[:8] + header(0, 0) + chunk(b"IEND", b""),
    "flipped bits": GOOD[:60] + bytes(byte ^ 0x55 for byte in GOOD[60:]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_a_400_that_names_the_field(name: str) -> None:
    assert refused(MediaHarness(), BAD[name]).info.code == "invalid_image"


def bombs() -> dict[str, bytes]:
    vp8x = b"VP8X" + struct.pack("<I", 10) + bytes(4) + (16382).to_bytes(3, "little") * 2
    webp = b"RIFF" + struct.pack("<I", 4 + len(vp8x) + 8) + b"WEBP" + vp8x + b"VP8 " + bytes(4)
    gif = (
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,"
        + struct.pack("<HHHH", 0, 0, 65535, 65535)
        + b"\0\2\0;"
    )
    bmp = encoded(Image.fromarray(IMAGE), "BMP")
    return {
        "png": huge_png(12_000, 12_000),
        "gif": gif,
        "webp": webp,
        "bmp": bmp[:18] + struct.pack("<ii", 1 << 30, 1 << 30) + bmp[26:],
        "png beyond Pillow's own bound": GOOD[:8] + header(1 << 30, 1 << 30),
    }


def test_a_small_file_that_claims_to_be_huge_costs_nothing() -> None:
    harness = MediaHarness()
    files = bombs()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in files.values():
        assert len(data) < 1 << 20
        refused(harness, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10  # KiB


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded() -> None:
    """They are a few bytes each, and each is work for every pixel, in a call that nothing can stop."""
    assert "scans" in refused(MediaHarness(), endless_jpeg(1000, 3000)).info.message
    ordinary = endless_jpeg(64, 0)
    assert pixels(MediaHarness(), ordinary).shape == (64, 64, 3)
    within = ordinary[:2] + b"\xff\xe1" + struct.pack(">H", 2 + 400) + b"\xff\xda" * 200 + ordinary[2:]
    behind = ordinary + b"\xff\xda\x00\x02" * 200
    for preview in (within, behind):
        assert pixels(MediaHarness(), preview).shape == (64, 64, 3)


def test_compressed_text_in_an_image_is_bounded() -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(64 << 20), 9))
    data = GOOD[:33] + text * 4 + GOOD[33:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(MediaHarness(), data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_while_an_image_is_decoded_its_memory_counts() -> None:
    harness = MediaHarness(max_bytes=4 << 20)
    with pytest.raises(OmniError) as caught:
        harness.keep(huge_png(1000, 1000), modality="image")
    assert caught.value.info.status == 429
    harness.assert_empty()


def test_while_a_large_image_is_decoded_others_are_served() -> None:
    harness = MediaHarness()
    large = np.random.default_rng(2).integers(0, 256, (3000, 3000, 3), np.uint8)
    job = harness.put(q.Decode(owner="o", modality="image", blob=harness.blob(png(large, compress_level=1))))
    clip = harness.keep(wav(tone(0.1, 16_000), 16_000))
    assert job not in harness.replies
    while job not in harness.replies:
        harness.engine.step(harness)
    picture = q.parse(harness.take(job), q.MediumInfo)
    harness.ask(q.Discard(clips=(clip.id, picture.id)))
    harness.assert_empty()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_a_decode_that_is_left_ends_at_any_moment(format: str) -> None:
    harness = MediaHarness(slice_s=0.0001)
    data = encoded(Image.fromarray(np.tile(noise(300, 400), (5, 4, 1))), format)
    for steps in (1, 2, 4):
        harness.put(q.Decode(owner="o", modality="image", blob=harness.blob(data)))
        for _ in range(steps):
            harness.engine.step(harness)
        harness.ask(q.Discard(owners=("o",)))
        harness.assert_empty()
    assert pixels(harness, png(IMAGE)).shape == IMAGE.shape  # the thread is free again
    harness.engine.close()


@pytest.mark.parametrize("reason", ["its client left", "it is too much"])
def test_who_leaves_while_an_image_is_decoded_holds_nobody_up(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some formats are decoded in one call that nothing can stop; its end is waited for beside the others' work."""
    begun, end = threading.Event(), threading.Event()

    def decoding(image: Image.Image, within: int | None) -> UInt8:
        begun.set()
        assert end.wait(20)
        return np.asarray(image)

    monkeypatch.setattr(images, "_pixels", decoding)
    harness = MediaHarness(max_bytes=1 << 20)
    job = harness.put(q.Decode(owner="o", modality="image", data=png(IMAGE)))
    while not begun.is_set():
        harness.engine.step(harness)
    if reason == "its client left":
        harness.ask(q.Discard(owners=("o",)))
    else:
        monkeypatch.setattr(Job, "nbytes", property(lambda job: 2 << 20))
        harness.engine.step(harness)
        monkeypatch.undo()
    assert harness.replies.pop(job)[1] is not None
    clip = harness.keep(wav(tone(0.1, 16_000), 16_000), owner="other")
    assert harness.engine.counters()["questions"] == 1
    end.set()
    harness.ask(q.Discard(clips=(clip.id,)))
    harness.assert_empty()
    assert job not in harness.replies
    assert pixels(harness, png(IMAGE)).shape == IMAGE.shape  # the thread is free again
    harness.engine.close()


def test_any_damage_is_an_image_or_a_400() -> None:
    generator = np.random.default_rng(3)
    harness = MediaHarness()
    for format in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        good = encoded(Image.fromarray(IMAGE), format)
        for _ in range(60):
            bad = bytearray(good)
            for _ in range(generator.integers(1, 6)):
                bad[generator.integers(len(bad))] = generator.integers(256)
            data = bytes(bad[: generator.integers(len(bad) // 2, len(bad) + 1)])
            status = 400
            try:
                pixels(harness, data)
            except OmniError as error:
                status = error.info.status
            assert status == 400
            harness.assert_empty()
