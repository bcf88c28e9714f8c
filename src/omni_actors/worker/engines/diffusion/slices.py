"""Encoding and decoding, slice by slice."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.diffusion.adapter import DENOISE, DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.memory import phase_bytes
from omni_actors.worker.engines.diffusion.request import PictureRequest
from omni_actors.worker.engines.diffusion.table import PictureTable
from omni_actors.worker.returned import kind_of, sequence_of, wrong

log = logging.getLogger(__name__)


class Slices:
    """One encoding or decoding under way, of pictures that share it. Between two slices other work may run.

    Args:
        phase: :attr:`Phase.ENCODE` or :attr:`Phase.DECODE`.
        cursors: The pictures.
    """

    def __init__(self, phase: Phase, cursors: Sequence[Cursor]) -> None:
        self.phase = phase
        self.cursors = list(cursors)
        self.size = sum(phase_bytes(cursor.footprint, phase) for cursor in cursors)
        """The bytes that the work holds between two slices, beside the state."""
        self.held = False
        """Whether those bytes are taken."""
        self.seconds = 0.0
        self._work: Iterator[Any] | None = None

    def next(self, adapter: DiffusionAdapter) -> Sequence[Any] | None:
        """Do one slice. Return the results behind the last slice, one for each cursor, else ``None``."""
        method = self.phase.value
        if self._work is None:
            begun: Any = adapter.encode(self.cursors) if self.phase is Phase.ENCODE else adapter.decode(self.cursors)
            if not isinstance(begun, Iterator):
                raise wrong(adapter, method, kind_of(begun), "an iterator of None, and of the results last")
            self._work = begun
        try:
            found = next(self._work)
        except StopIteration:
            raise wrong(adapter, method, "no results", "results in its last slice") from None
        if found is None:
            return None
        results = sequence_of(adapter, method, found, "a sequence of results")
        if len(results) != len(self.cursors):
            got = f"{len(results)} results for {len(self.cursors)} pictures"
            raise wrong(adapter, method, got, "one result for each picture")
        return results

    def close(self) -> None:
        """Drop the work, and what its iterator holds."""
        work, self._work = self._work, None
        if work is not None and (close := getattr(work, "close", None)) is not None:
            try:
                close()
            except Exception:
                log.exception("a slice of %s did not close", self.phase.value)


class SliceRunner:
    """The encodings and decodings under way, and what becomes of their results and failures."""

    def __init__(self, table: PictureTable) -> None:
        self._table = table
        self._of: dict[Cursor, Slices] = {}
        self._alone: set[Cursor] = set()
        table.forget.append(self._forget)

    def under_way(self, cursor: Cursor) -> Slices | None:
        """Return the work that a cursor takes part in, if it has begun."""
        return self._of.get(cursor)

    def alone(self, cursor: Cursor) -> bool:
        """Return whether a cursor shares its work with no other one, since a shared one has failed."""
        return cursor in self._alone

    def run(self, slices: Slices, out: Outbox) -> bool:
        """Do one slice, and what follows from it. Return whether all of the work is done."""
        for cursor in slices.cursors:
            if not cursor.over:
                self._of[cursor] = slices
        if not slices.held:
            slices.held = True
            self._table.memory.hold(slices.size)
        try:
            results = slices.next(self._table.adapter)
        except Exception as error:
            self._failed(slices, error, out)
            return False
        if results is None:
            return False
        self._drop(slices)
        self._done(slices, results, out)
        return True

    def close(self) -> None:
        """Drop all work under way."""
        for slices in set(self._of.values()):
            self._drop(slices)

    def _drop(self, slices: Slices) -> None:
        slices.close()
        if slices.held:
            slices.held = False
            self._table.memory.hold(-slices.size)
        for cursor in slices.cursors:
            self._of.pop(cursor, None)
            self._alone.discard(cursor)

    def _forget(self, cursors: Sequence[Cursor]) -> None:
        for cursor in cursors:
            self._alone.discard(cursor)
            slices = self._of.pop(cursor, None)
            if slices is not None and all(it.over for it in slices.cursors):
                self._drop(slices)

    def _failed(self, slices: Slices, error: Exception, out: Outbox) -> None:
        """Fail a lone request; of several, each is to run alone in a later unit of work."""
        table = self._table
        self._drop(slices)
        memory = table.faults.classify(error)
        table.totals["out_of_memory"] += memory
        left = [cursor for cursor in slices.cursors if not cursor.over]
        if len(left) == 1 or (len({cursor.key for cursor in left}) == 1 and not memory):
            table.fail(table.requests[left[0].key], error, out)
            table.suspect(slices.phase.value, error)
            return
        log.warning(
            "%s of %d pictures raised %s: each is done alone", slices.phase.value, len(left), type(error).__name__
        )
        self._alone.update(left)

    def _done(self, slices: Slices, results: Sequence[Any], out: Outbox) -> None:
        table = self._table
        table.succeeded(slices.phase.value)
        for cursor, result in zip(slices.cursors, results, strict=True):
            request = table.requests.get(cursor.key)
            if request is None or cursor.over:
                continue
            table.totals[f"{slices.phase.value}s"] += 1
            try:
                if slices.phase is Phase.ENCODE:
                    self._encoded(request, result, out)
                else:
                    self._decoded(request, cursor, result, out)
            except Exception as error:
                table.fail(request, error, out)

    def _encoded(self, request: PictureRequest, conditioning: Any, out: Outbox) -> None:
        table = self._table
        for cursor in request.cursors:
            cursor.conditioning = conditioning
        if DENOISE not in table.adapter.parts:
            table.send(request, table.adapter.conditioning_payload(request.cursors[0]), out)
            for cursor in request.cursors:
                table.done(cursor)
            table.finish(request, out)
            return
        for cursor in request.cursors:
            cursor.phase = Phase.DENOISE
            table.active[cursor] = None

    def _decoded(self, request: PictureRequest, cursor: Cursor, pixels: Any, out: Outbox) -> None:
        table = self._table
        layers = pixels if isinstance(pixels, list) else [pixels]
        for place, layer in enumerate(layers):
            meta: dict[str, Any] = {"index": cursor.index, "seed": cursor.seed}
            if len(layers) > 1:
                meta["layer"] = place
            table.send(request, pixels_payload(table.adapter, "decode", layer, meta), out)
        request.count(images=len(layers))
        table.totals["pictures"] += len(layers)
        table.done(cursor)
        table.finish(request, out)


def pixels_payload(adapter: DiffusionAdapter, method: str, pixels: Any, meta: dict[str, Any]) -> Payload:
    """Return the payload of a picture, after a check of the pixels that ``adapter.method`` returned."""
    right = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3
    if not right or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise wrong(adapter, method, _told(pixels), "an array uint8 [height, width, 1, 3 or 4]")
    return Payload("pixels", meta, {"pixels": np.ascontiguousarray(pixels)})


def _told(pixels: Any) -> str:
    return f"an array {pixels.dtype}{list(pixels.shape)}" if isinstance(pixels, np.ndarray) else kind_of(pixels)
