"""The engine as a whole: previews, pieces, credits, turns, memory, and requests that are over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.media.writing.harness import PictureHarness, noise, pixels_of, smooth

from omni_actors.connectors.payload import Payload
from omni_actors.media.limits import PICTURE_OPTIONS
from omni_actors.media.stage import PICTURES
from omni_actors.media.worker.pictures import engine as engine_module
from omni_actors.media.worker.pictures import formats
from omni_actors.media.worker.pictures.threads import STUCK_S, EncoderStuck
from omni_actors.protocol.options import defaults_of
from omni_actors.worker.checks import InputError

FORMATS = ("png", "webp", "jpeg")


def test_the_declared_stage_loads_with_its_own_defaults() -> None:
    harness = PictureHarness(**defaults_of(PICTURES.options))
    assert harness.info == {"formats": list(FORMATS)}
    assert all(option.doc for option in PICTURE_OPTIONS.values())


# Previews.


@pytest.mark.parametrize("format", FORMATS)
def test_a_preview_is_shrunk_and_in_the_format_asked_for(format: str) -> None:
    harness = PictureHarness()
    harness.admit(format=format)
    assert harness.feed(smooth(200, 400), preview=3, side=64), "a preview is consumed at once"
    harness.run()
    [(meta, data)] = harness.files()
    assert meta == {"index": 0, "seed": 7, "preview": 3, "format": format, "width": 64, "height": 32}
    assert pixels_of(data).shape == (32, 64, 3)
    small = smooth(200, 400)[3::6, 3::6][:32, :64].astype(int)
    assert abs(pixels_of(data).mean() - small.mean()) < 5
    harness.abort(0)
    harness.assert_empty()


def test_a_small_preview_keeps_its_size_and_its_pixels() -> None:
    harness = PictureHarness()
    harness.admit()
    harness.feed(noise(8, 12), preview=1, side=64)
    harness.run()
    [(_, data)] = harness.files()
    assert np.array_equal(pixels_of(data), noise(8, 12))


def test_the_largest_preview_is_one_chunk() -> None:
    harness = PictureHarness()
    harness.admit()
    harness.feed(noise(1100, 1100, 4), preview=1, side=5000)
    harness.run()
    [chunk] = harness.chunks
    assert (chunk.meta["width"], chunk.meta["height"]) == (1024, 1024)
    harness.abort(0)
    harness.assert_empty()


@pytest.mark.parametrize("format", FORMATS)
def test_a_newer_preview_replaces_an_older_one_that_waits(format: str) -> None:
    harness = PictureHarness()
    harness.admit(format=format)
    for step in range(1, 6):
        harness.feed(noise(32, 32), preview=step)
    harness.feed(noise(32, 32), index=1, preview=1)
    harness.run()
    assert [(meta["index"], meta["preview"]) for meta, _ in harness.files()] == [(0, 5), (1, 1)]
    assert harness.engine.counters()["replaced_previews_total"] == 4


@pytest.mark.parametrize("format", FORMATS)
def test_no_preview_comes_behind_the_finished_picture(format: str) -> None:
    harness = PictureHarness(slice_s=0.0)
    harness.admit(format=format)
    harness.feed(smooth(700, 700), preview=1, side=2000)
    harness.step()  # it is under way now
    harness.feed(smooth(64, 64), preview=2)
    harness.feed(smooth(400, 400))
    harness.feed(smooth(64, 64), preview=3, end=True)
    harness.run()
    assert ["preview" in meta for meta, _ in harness.files()][-1:] == [False]
    assert [meta["preview"] for meta, _ in harness.files() if "preview" in meta] in ([], [1])
    assert harness.finished == [0]
    harness.assert_empty()


# Pieces and credits.


def test_a_large_file_leaves_in_pieces_and_small_ones_in_between() -> None:
    harness = PictureHarness()
    harness.admit(1)
    harness.admit(2)
    large = noise(2000, 2400)
    harness.feed(large, key=1, end=True)
    harness.run(lambda: bool(harness.chunks))
    assert harness.chunks[0].meta["pieces"] == 4
    harness.feed(noise(10, 10), key=2, end=True)
    harness.run()
    assert harness.finished == [2, 1]
    [(meta, data)] = harness.files(1)
    assert "piece" not in meta
    assert np.array_equal(pixels_of(data), large)
    harness.assert_empty()


def test_pixels_are_read_in_place_and_given_back_in_order() -> None:
    harness = PictureHarness()
    harness.admit()
    harness.feed(smooth(900, 900), index=0)
    harness.feed(noise(8, 8), index=1)
    harness.feed(noise(8, 8), index=2, end=True)
    harness.run(lambda: len(harness.files()) == 2)
    assert [meta["index"] for meta, _ in harness.files()] == [1, 2]
    assert harness.consumed_of[0] == 0, "the first one's pixels are still read"
    harness.run()
    assert harness.consumed_of[0] == 3
    assert harness.finished == [0]
    harness.assert_empty()


def test_the_layers_of_a_picture_are_files_of_their_own() -> None:
    harness = PictureHarness()
    harness.admit()
    layers = [noise(1100, 1100, 4, seed) for seed in range(3)]
    harness.feed(noise(8, 8), preview=1)
    for layer, pixels in enumerate(layers):
        harness.feed(pixels, layer=layer, end=layer == 2)
    harness.run()
    found = {meta["layer"]: data for meta, data in harness.files()}
    assert all(np.array_equal(pixels_of(found[layer]), layers[layer]) for layer in range(3))
    assert (harness.finished, harness.consumed_of[0]) == ([0], 3)
    harness.assert_empty()


def test_a_small_picture_does_not_wait_for_a_large_one() -> None:
    harness = PictureHarness(slice_s=0.001)
    harness.admit(1)
    harness.admit(2)
    harness.feed(smooth(1000, 1000), key=1, end=True)
    for _ in range(3):
        harness.step()
    harness.feed(smooth(64, 64), key=2, end=True)
    harness.run()
    assert harness.finished == [2, 1]


def test_a_large_picture_is_written_although_small_ones_keep_coming() -> None:
    harness = PictureHarness(slice_s=0.0)  # one slice a step, and a small picture takes two
    harness.admit(0)
    harness.feed(smooth(600, 600), key=0, end=True)
    for key in range(1, 400):
        harness.admit(key)
        harness.feed(smooth(64, 64), key=key, end=True)
        harness.step()
        if 0 in harness.finished:
            return
    raise AssertionError("the large picture starves")


# Threads.


class Gate:
    """A stand-in for the call into the library, which waits until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Semaphore(0)
        self.real = formats.write_whole
        self.calls = 0
        self.waits: Callable[[Any], bool] = lambda pixels: pixels.shape[0] * pixels.shape[1] > 1 << 20

    def __call__(self, pixels: Any, manner: Any, preview: bool, stopped: Any) -> list[bytes]:
        self.calls += 1
        self.begun.release()
        if self.waits(pixels):
            assert self.open.wait(30)
        return self.real(pixels, manner, preview, stopped)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    it = Gate()
    monkeypatch.setattr(engine_module, "write_whole", it)
    return it


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_a_long_call_holds_up_neither_small_pictures_nor_pngs(gate: Gate, format: str) -> None:
    harness = PictureHarness()
    harness.admit(1, format=format)
    harness.admit(2, format=format)
    harness.admit(3)
    harness.feed(smooth(1200, 1200), key=1, end=True)
    harness.step()
    harness.feed(smooth(64, 64), key=2, end=True)
    harness.feed(smooth(64, 64), key=3, end=True)
    harness.run(lambda: len(harness.finished) == 2)
    assert sorted(harness.finished) == [2, 3]
    gate.open.set()
    harness.run()
    assert harness.finished[-1] == 1
    harness.assert_empty()


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_a_preview_that_is_still_in_its_thread_is_dropped_for_the_finished_picture(gate: Gate, format: str) -> None:
    harness = PictureHarness()
    gate.waits = lambda pixels: pixels.shape[0] == 64
    harness.admit(1, format=format)
    harness.admit(2, format=format)
    harness.feed(smooth(64, 64), key=1, end=True)
    harness.step()
    harness.feed(smooth(32, 32), key=2, preview=1)
    harness.step()
    harness.feed(smooth(1100, 1100), key=2, end=True)
    harness.run(lambda: harness.finished == [2])
    gate.open.set()
    harness.run()
    assert [meta.get("preview") for meta, _ in harness.files(2)] == [None]
    harness.assert_empty()


def test_a_request_that_is_over_stops_its_calls_and_leaves_nothing(gate: Gate) -> None:
    harness = PictureHarness()
    gate.calls = 0
    for key in range(3):
        harness.admit(key, format="jpeg")
        harness.feed(smooth(1200, 1200), key=key, end=True)
    harness.step()
    assert gate.begun.acquire(timeout=30)
    for _ in range(3):
        gate.begun.acquire(blocking=False)
    for key in range(3):
        harness.abort(key)
    assert harness.engine.counters()["pictures_writing"] == 1, "a running call ends by itself"
    assert harness.engine.counters()["abandoned_calls_total"] == 1
    gate.open.set()
    harness.assert_empty()
    assert gate.calls - 2 <= 1, "calls that had not begun never do"
    assert harness.chunks == []


def test_a_jpeg_stops_in_the_middle() -> None:
    written = 0

    def stopped() -> bool:
        nonlocal written
        written += 1
        return written > 2

    with pytest.raises(formats.Stopped):
        formats.write_whole(noise(1200, 1200), formats.Manner("jpeg", 95, None), False, stopped)
    assert written == 3


def test_a_call_that_never_returns_ends_the_process(gate: Gate) -> None:
    now = 0.0
    harness = PictureHarness(lambda: now)
    harness.admit(format="jpeg")
    harness.feed(smooth(1200, 1200), end=True)
    harness.step()
    assert gate.begun.acquire(timeout=30)
    assert gate.begun.acquire(timeout=30)
    assert gate.begun.acquire(timeout=30)
    harness.step()
    now = STUCK_S + 1
    with pytest.raises(EncoderStuck):
        harness.step()
    gate.open.set()
    harness.abort(0)
    harness.assert_empty()


# Memory, errors.


def test_memory_is_bounded_and_a_picture_that_is_larger_alone_is_written_alone() -> None:
    harness = PictureHarness(max_bytes=1 << 20, slice_s=0.0)
    most = 0
    for key, side in enumerate((300, 900, 300, 300, 900, 300)):
        harness.admit(key)
        harness.feed(noise(side, side), key=key, end=True)
    while harness.engine.runnable:
        harness.step()
        counters = harness.engine.counters()
        most = max(most, int(counters["bytes"]))
        if counters["bytes"] > 1 << 20:
            assert counters["pictures_writing"] <= 1
    assert sorted(harness.finished) == list(range(6))
    assert most < 3 * 900 * 900 + (1 << 15)
    harness.assert_empty()


@pytest.mark.parametrize(
    "payload",
    [
        Payload("pixels", {"index": 0}, {}),
        Payload("pixels", {"index": 0}, {"pixels": np.zeros((4, 4), np.uint8)}),
        Payload("pixels", {"index": 0}, {"pixels": np.zeros((4, 4, 3), np.float32)}),
        Payload("pixels", {"index": 0}, {"pixels": np.zeros((4, 4, 2), np.uint8)}),
        Payload("pixels", {"index": 0}, {"pixels": np.zeros((0, 4, 3), np.uint8)}),
        Payload("pixels", {}, {"pixels": np.zeros((4, 4, 3), np.uint8)}),
    ],
)
def test_a_payload_that_is_no_picture_blames_its_stage(payload: Payload) -> None:
    harness = PictureHarness()
    harness.admit()
    with pytest.raises(InputError):
        harness.engine.feed(0, "pixels", payload, False)
    harness.abort(0)
    harness.assert_empty()


@pytest.mark.parametrize("format", FORMATS)
def test_a_picture_that_fails_fails_its_request_alone(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = PictureHarness()

    def broken(*arguments: Any) -> Any:
        raise ValueError("planted")
        yield

    def broken_call(*arguments: Any) -> Any:
        raise ValueError("planted")

    harness.admit(1, format=format)
    harness.admit(2, format="png" if format != "png" else "jpeg")
    monkeypatch.setattr(engine_module, "png_slices" if format == "png" else "write_whole", broken)
    if format != "png":
        monkeypatch.setattr(engine_module, "write_whole", broken_call)
    for index in range(3):
        harness.feed(noise(8, 8), key=1, index=index, end=index == 2)
    harness.feed(noise(8, 8), key=2, end=True)
    harness.run()
    assert harness.failed[1].status == 500
    assert harness.finished == [2]
    harness.assert_empty()


def test_a_request_without_pictures_ends() -> None:
    harness = PictureHarness()
    harness.admit()
    harness.feed(None, end=True)
    harness.run()
    assert harness.finished == [0]
    assert harness.engine.feed(0, "pixels", None, True), "input of a request that is over is consumed"
    harness.assert_empty()
