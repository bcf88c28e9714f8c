"""The engine of the stage ``pictures``: pixels in, files out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import features

from omni_actors.connectors.payload import Payload
from omni_actors.media.limits import PICTURE_OPTIONS
from omni_actors.media.worker.pictures.formats import (
    FORMATS,
    MOST_PREVIEW_SIDE,
    PREVIEW_SIDE,
    Manner,
    Stopped,
    manner_of,
    png_slices,
    shrunk,
    write_whole,
)
from omni_actors.media.worker.pictures.png import UInt8
from omni_actors.media.worker.pictures.request import File, Picture, PictureRequest
from omni_actors.media.worker.pictures.threads import EncoderThreads
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import MediaChunk, Usage
from omni_actors.worker.checks import InputError, TensorSpec, check_input
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.isolation import Faults
from omni_actors.worker.memory import trim_heap

PORT = "pixels"
PIECE = 4 << 20
"""Bytes of one chunk of a picture's file, at most. A preview is one chunk."""
_TOTALS = ("files", "preview_files", "replaced_previews", "file_bytes", "abandoned_calls", "failures")
_TURN_S = 0.002
"""Seconds that a step waits for a thread when nothing else is to be done."""
_SPECS = {"pixels": TensorSpec("uint8", (None, None, None))}
_FOR_CLIENT = ("index", "seed", "layer", "preview")
"""The metadata of a payload that the client gets."""


class PictureEngine(Engine):
    """The engine that writes pictures as PNG, WebP or JPEG.

    PNG is written in slices of some milliseconds, WebP and JPEG in threads. Half of the slices go to the picture that
    is done soonest, previews before others, and half to the oldest one: a small picture never waits for the end of a
    large one, and a large one is never kept waiting by small ones.

    The pixels of a finished picture stay in the memory of the stage that made them while they are written, so their
    credit goes back when the file is there: that stage makes no more pictures than this one can write. A preview is
    shrunk when it arrives, and its credit goes back at once. Of the previews of one picture that wait only the newest
    is written, and none behind the finished picture.

    The option ``max_bytes`` bounds the memory of all files under way; a picture that is larger alone is written alone.
    """

    def __init__(self, hello: Hello, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(hello)
        options = filled(PICTURE_OPTIONS, hello.options)
        self._max_bytes: int = options["max_bytes"]
        self._slice_s: float = options["slice_s"]
        self._faults = Faults(hello)
        self._threads = EncoderThreads(clock)
        self._requests: dict[int, PictureRequest] = {}
        self._waiting: deque[Picture] = deque()
        """Finished pictures that are not begun, in order of arrival."""
        self._slicing: list[Picture] = []
        self._calling: list[Picture] = []
        self._left: list[Picture] = []
        """Pictures of requests that are over, with a call that still runs."""
        self._outgoing: deque[Picture] = deque()
        self._over: list[PictureRequest] = []
        self._oldest_next = False
        self._totals = dict.fromkeys(_TOTALS, 0)

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("checking the formats", None)
        formats = [name for name in FORMATS if name == "png" or features.check({"jpeg": "jpg"}.get(name, name))]
        self._formats = tuple(formats)
        pixels = np.zeros((2, 2, 3), np.uint8)
        for name in formats:
            manner = Manner(name, None, None)
            if name != "png":
                write_whole(pixels, manner, False, lambda: False)
        return {"formats": formats}

    # ---- requests

    def admit(self, work: Work) -> None:
        manner = manner_of(work.params.get("image") or ImageGeneration())
        if manner.format not in self._formats:
            raise invalid_request(f"This server cannot write {manner.format!r}.", "output_format")
        request = self._requests[work.key] = PictureRequest(work.key, work.request_id, manner)
        if not work.ports:
            request.ended = True
            self._over.append(request)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests.get(key)
        if request is None:
            return True
        consumed = payload is None or self._take(request, payload)
        if end:
            request.ended = True
            self._check_over(request)
        return consumed

    def _take(self, request: PictureRequest, payload: Payload) -> bool:
        """Take a picture in, and return whether its payload is consumed."""
        pixels = _pixels_of(payload)
        height, width, channels = pixels.shape
        request.manner.check_size(width, height)
        request.manner.check_channels(channels)
        meta = {name: payload.meta[name] for name in _FOR_CLIENT if payload.meta.get(name) is not None}
        index = meta["index"]
        if "preview" in meta:
            if index not in request.whole:
                self._totals["replaced_previews"] += index in request.previews
                side = int(payload.meta.get("side") or PREVIEW_SIDE)
                small = shrunk(pixels, min(max(1, side), MOST_PREVIEW_SIDE))
                request.previews[index] = self._picture(request, meta, small)
                request.previews[index].nbytes += small.nbytes
            return True
        request.whole.add(index)
        self._totals["replaced_previews"] += request.previews.pop(index, None) is not None
        self._drop({it for it in request.live if it.preview and it.index == index})
        picture = self._picture(request, meta, pixels)
        request.queued.append(picture)
        request.live.add(picture)
        self._waiting.append(picture)
        return False

    @staticmethod
    def _picture(request: PictureRequest, meta: dict[str, Any], pixels: UInt8) -> Picture:
        height, width, channels = pixels.shape
        meta |= {"format": request.manner.format, "width": width, "height": height}
        return Picture(request, meta, pixels, request.manner.working_bytes(height, width, channels))

    def abort(self, key: int) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            self._drop(set(request.live))

    def _drop(self, pictures: set[Picture]) -> None:
        """End all work for these pictures."""
        if not pictures:
            return
        self._waiting = deque(it for it in self._waiting if it not in pictures)
        self._outgoing = deque(it for it in self._outgoing if it not in pictures)
        self._slicing = [it for it in self._slicing if it not in pictures]
        self._calling = [it for it in self._calling if it not in pictures]
        for picture in pictures:
            picture.drop()
            picture.request.live.discard(picture)
            if picture.call is not None and not picture.call.future.done():
                self._left.append(picture)
                self._totals["abandoned_calls"] += 1

    @property
    def runnable(self) -> bool:
        return bool(
            self._waiting
            or self._slicing
            or self._calling
            or self._outgoing
            or self._over
            or any(request.previews for request in self._requests.values())
        )

    # ---- one step

    def step(self, out: Outbox) -> bool:
        pending = [it.call for it in (*self._calling, *self._left) if it.call is not None]
        self._threads.check(pending)
        ran = self._collect(out)
        ran |= self._begin()
        ran |= self._slice(out)
        ran |= self._send(out)
        ran |= self._finish(out)
        if not ran and pending:
            self._threads.wait(pending, _TURN_S)
            ran = True
        return ran

    def _begin(self) -> bool:
        """Begin every preview, and finished pictures in order of arrival as far as memory goes."""
        ran = False
        for request in self._requests.values():
            for index in [it for it in request.previews if not _preview_under_way(request, it)]:
                picture = request.previews.pop(index)
                request.live.add(picture)
                self._start(picture)
                ran = True
        while self._waiting and self._fits(self._waiting[0]):
            self._start(self._waiting.popleft())
            ran = True
        return ran

    def _fits(self, picture: Picture) -> bool:
        others = [it for it in (*self._slicing, *self._calling, *self._left, *self._outgoing) if not it.preview]
        return not others or self._nbytes + picture.nbytes <= self._max_bytes

    def _start(self, picture: Picture) -> None:
        manner, pixels = picture.request.manner, picture.pixels
        assert pixels is not None
        picture.remaining = pixels.shape[0] * pixels.shape[1]
        if manner.format == "png":
            picture.slices = png_slices(pixels, manner, picture.preview)
            self._slicing.append(picture)
        else:
            write = partial(write_whole, pixels, manner, picture.preview)
            picture.call = self._threads.submit(picture.remaining, write)
            self._calling.append(picture)

    def _slice(self, out: Outbox) -> bool:
        """Write PNGs for ``slice_s`` seconds."""
        ran = False
        end = time.perf_counter() + self._slice_s
        while self._slicing:
            ran = True
            self._oldest_next = not self._oldest_next
            soonest = min(self._slicing, key=lambda it: (not it.preview, it.remaining))
            self._write_slice(self._slicing[0] if self._oldest_next else soonest, out)
            if time.perf_counter() >= end:
                break
        return ran

    def _write_slice(self, picture: Picture, out: Outbox) -> None:
        assert picture.slices is not None
        try:
            rows = next(picture.slices)
        except StopIteration as end:
            self._slicing.remove(picture)
            self._written(picture, end.value, out)
        except Exception as error:
            self._fail(picture.request, error, out)
        else:
            picture.remaining -= rows * picture.meta["width"]

    def _collect(self, out: Outbox) -> bool:
        """Take the files of the calls that are over."""
        self._left = [it for it in self._left if it.call is not None and not it.call.future.done()]
        done = [it for it in self._calling if it.call is not None and it.call.future.done()]
        for picture in done:
            if picture not in self._calling:
                continue  # another picture of its request has failed just now
            assert picture.call is not None
            self._calling.remove(picture)
            try:
                parts = picture.call.future.result()
            except Exception as error:
                self._fail(picture.request, error, out)
            else:
                self._written(picture, parts, out)
        return bool(done)

    def _written(self, picture: Picture, parts: list[bytes], out: Outbox) -> None:
        request = picture.request
        picture.pixels = picture.slices = picture.call = None
        picture.encoded = True
        picture.file = File(parts)
        picture.nbytes = picture.file.nbytes
        picture.pieces = 1 if picture.preview else -(-picture.nbytes // PIECE)
        self._totals["preview_files" if picture.preview else "files"] += 1
        self._totals["file_bytes"] += picture.nbytes
        self._outgoing.append(picture)
        while request.queued and request.queued[0].encoded:
            request.queued.popleft()
            out.consumed(request.key, PORT)

    def _send(self, out: Outbox) -> bool:
        """Send files in turns, about one piece in a step."""
        room = PIECE
        ran = False
        while self._outgoing and room > 0:
            ran = True
            picture = self._outgoing.popleft()
            assert picture.file is not None
            meta = picture.meta
            if picture.pieces > 1:
                meta = {**meta, "piece": picture.sent, "pieces": picture.pieces}
            data = picture.file.take(PIECE if picture.pieces > 1 else picture.nbytes)
            picture.sent += 1
            picture.nbytes -= len(data)
            room -= len(data)
            out.media(MediaChunk(picture.request.key, "image", meta, data))
            if picture.sent < picture.pieces:
                self._outgoing.append(picture)
                continue
            picture.request.live.discard(picture)
            self._check_over(picture.request)
        return ran

    def _check_over(self, request: PictureRequest) -> None:
        if request.over:
            self._over.append(request)

    def _finish(self, out: Outbox) -> bool:
        over = [request for request in self._over if self._requests.get(request.key) is request]
        self._over.clear()
        for request in over:
            del self._requests[request.key]
            out.finish(request.key, Usage())
        return bool(over)

    def _fail(self, request: PictureRequest, error: Exception, out: Outbox) -> None:
        if isinstance(error, Stopped):
            return
        self._totals["failures"] += 1
        self.abort(request.key)
        out.fail(request.key, self._faults.explain(error, request.request_id))

    # ---- the rest

    @property
    def _nbytes(self) -> int:
        held = sum(it.nbytes for it in (*self._slicing, *self._calling, *self._left, *self._outgoing))
        return held + sum(it.nbytes for request in self._requests.values() for it in request.previews.values())

    def rest(self) -> float | None:
        trim_heap()
        return None

    def counters(self) -> dict[str, float]:
        """Return gauges of pictures, bytes and requests, and counters with names in ``_total``."""
        self._left = [it for it in self._left if it.call is not None and not it.call.future.done()]
        return {
            "requests": len(self._requests),
            "pictures_waiting": len(self._waiting),
            "pictures_writing": len(self._slicing) + len(self._calling) + len(self._left),
            "bytes": self._nbytes,
            **{f"{name}_total": count for name, count in self._totals.items()},
        }

    def close(self) -> None:
        for key in list(self._requests):
            self.abort(key)
        self._threads.close()


def _pixels_of(payload: Payload) -> UInt8:
    """Return the pixels of a payload. Raises :class:`InputError` for a payload that is no picture."""
    check_input(payload, _SPECS)
    pixels: UInt8 = payload.tensors["pixels"]
    if pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise InputError(f"tensor 'pixels' of payload 'pixels' has the shape {list(pixels.shape)}")
    if type(payload.meta.get("index")) is not int:
        raise InputError("payload 'pixels' has no index")
    return pixels


def _preview_under_way(request: PictureRequest, index: int) -> bool:
    return any(it.preview and it.index == index for it in request.live)
