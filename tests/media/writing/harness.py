"""The picture engine without a worker around it, and pictures to put into it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from omni_actors.connectors.payload import Payload
from omni_actors.media.worker.pictures.engine import PIECE, PictureEngine
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Work

UInt8 = npt.NDArray[np.uint8]

GAUGES = ("requests", "pictures_waiting", "pictures_writing", "bytes")


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> UInt8:
    """Random pixels, the worst case of every format."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def smooth(height: int, width: int, channels: int = 3) -> UInt8:
    """Waves, which every format makes small."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(rows / (9 + i)) * np.cos(columns / (11 + i)) for i in range(channels)]
    return np.stack(waves, axis=-1).astype(np.uint8)


def pixels_of(data: bytes) -> UInt8:
    """The pixels of a file as Pillow reads it, [height, width, channels]."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        found = np.asarray(image)
    return found.reshape(*found.shape[:2], -1)


class PictureHarness:
    """An engine, and the outbox that it writes to."""

    def __init__(self, clock: Callable[[], float] | None = None, **options: Any) -> None:
        hello = Hello(version=1, stage="pictures", replica=0, incarnation=1, engine="", adapter="", options=options)
        self.engine = PictureEngine(hello, clock) if clock else PictureEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)
        self.chunks: list[MediaChunk] = []
        self.consumed_of: Counter[int] = Counter()
        self.finished: list[int] = []
        self.failed: dict[int, ErrorInfo] = {}
        self.aborted: set[int] = set()

    # The engine's outbox.

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        raise AssertionError("the picture engine makes no text")

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("the picture engine takes no steps")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        raise AssertionError("the picture engine chooses nothing")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: Any) -> Payload:
        raise AssertionError("the picture engine has no edges")

    def emit(self, key: int, payload: Payload) -> None:
        raise AssertionError("the picture engine has no edges")

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nothing was asked")

    def media(self, chunk: MediaChunk) -> None:
        assert not self._over(chunk.key), "output of a request that is over"
        assert len(chunk.data) <= (PIECE if "preview" not in chunk.meta else 2 * PIECE)
        self.chunks.append(chunk)

    def consumed(self, key: int, port: str) -> None:
        assert not self._over(key)
        assert port == "pixels"
        self.consumed_of[key] += 1

    def finish(self, key: int, usage: Usage) -> None:
        assert not self._over(key)
        assert usage == Usage()
        self.finished.append(key)

    def fail(self, key: int, error: ErrorInfo) -> None:
        assert not self._over(key)
        self.failed[key] = error

    def _over(self, key: int) -> bool:
        return key in self.finished or key in self.failed or key in self.aborted

    # What a worker's loop does.

    def admit(self, key: int = 0, **image: Any) -> None:
        section = ImageGeneration(**image)
        self.engine.admit(Work(key, f"r{key}", {"image": section}, frozenset({"pixels"}), visible=True))

    def feed(self, pixels: UInt8 | None, key: int = 0, end: bool = False, **meta: Any) -> bool:
        payload = None
        if pixels is not None:
            pixels.flags.writeable = False
            payload = Payload("pixels", {"index": 0, "seed": 7, **meta}, {"pixels": pixels})
        return self.engine.feed(key, "pixels", payload, end)

    def abort(self, key: int) -> None:
        self.engine.abort(key)
        self.aborted.add(key)

    def step(self) -> bool:
        return self.engine.step(self)

    def run(self, done: Callable[[], bool] | None = None) -> None:
        """Step until nothing is to be done, or until ``done()``."""
        while self.engine.runnable and not (done is not None and done()):
            assert self.step()

    # What came out.

    def write(self, pixels: UInt8, **image: Any) -> bytes:
        """The file of one picture, written alone."""
        self.admit(0, **image)
        assert not self.feed(pixels, end=True), "a finished picture is queued"
        self.run()
        assert self.failed == {}
        assert (self.finished, self.consumed_of[0]) == ([0], 1)
        [(meta, data)] = self.files()
        height, width, _ = pixels.shape
        format = image.get("format", "png")
        assert meta == {"index": 0, "seed": 7, "format": format, "width": width, "height": height}
        self.finished.clear()
        self.chunks.clear()
        self.consumed_of.clear()
        self.assert_empty()
        return data

    def files(self, key: int = 0) -> list[tuple[dict[str, Any], bytes]]:
        """The pictures and previews of a request in the order of their last pieces, with the metadata of a whole."""
        found: list[tuple[dict[str, Any], bytes]] = []
        open_: dict[Any, list[bytes]] = {}
        for chunk in self.chunks:
            if chunk.key != key:
                continue
            meta = dict(chunk.meta)
            piece, pieces = meta.pop("piece", 0), meta.pop("pieces", 1)
            place = meta["index"], meta.get("layer"), meta.get("preview")
            held = open_.setdefault(place, [])
            assert piece == len(held)
            held.append(chunk.data)
            if len(held) == pieces:
                found.append((meta, b"".join(open_.pop(place))))
            else:
                assert len(chunk.data) == PIECE
        assert not open_
        return found

    def assert_empty(self) -> None:
        """Nothing is held, once the calls that were left have ended."""
        for picture in list(self.engine._left):
            assert picture.call is not None
            picture.call.future.exception(timeout=30)
        counters = self.engine.counters()
        assert {name: counters[name] for name in GAUGES} == dict.fromkeys(GAUGES, 0)
        assert not self.engine.runnable
