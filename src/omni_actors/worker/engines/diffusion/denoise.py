"""Denoising: one forward over the pictures that share it, and a step of each picture's own scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_actors.protocol.request import StepProgress
from omni_actors.worker.checks import OutputError
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.diffusion.adapter import DECODE
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.request import PictureRequest
from omni_actors.worker.engines.diffusion.slices import pixels_payload
from omni_actors.worker.engines.diffusion.table import PictureTable
from omni_actors.worker.isolation import BatchLimit, run_bisecting
from omni_actors.worker.returned import sequence_of, wrong


class Denoiser:
    """The denoising steps of the pictures in a table.

    A batch that raises is run again in parts, until the requests that fail alone are known. For that a forward changes
    no cursor: predictions are taken into the cursors once the whole batch has been computed.

    Args:
        table: The pictures.
        limit: The rows of a forward; fewer for a while after memory was short.
        preview_side: The longest side of previews in pixels, told to the stage that writes the files.
    """

    def __init__(self, table: PictureTable, limit: BatchLimit, preview_side: int) -> None:
        self._table = table
        self._limit = limit
        self._side = preview_side

    def run(self, batch: list[Cursor], out: Outbox) -> None:
        """Do one step of each of these cursors, whose keys are equal."""
        table = self._table
        found = run_bisecting([batch], self._predict, lambda cursor: cursor.key, table.faults, halves)
        if found.short:
            table.totals["out_of_memory"] += 1
            fitting = max((self._rows(part) for part, _ in found.done), default=0)
            if fitting:
                self._limit.shrink(fitting)
        else:
            self._limit.succeeded()
        for key, error in found.failed.items():
            table.fail(table.requests[key], error, out)
        for part, predictions in found.done:
            table.succeeded("predict")
            for cursor, prediction in zip(part, predictions, strict=True):
                if not cursor.over:
                    self._advance(cursor, prediction, out)
        if found.failed and not found.done:
            table.suspect("predict", next(iter(found.failed.values())))

    def _rows(self, part: Sequence[Cursor]) -> int:
        return sum(map(self._table.adapter.rows, part))

    def _predict(self, part: list[Cursor]) -> Sequence[Any]:
        adapter = self._table.adapter
        rows = self._rows(part)
        predictions = sequence_of(adapter, "predict", adapter.predict(part), "a prediction for each picture")
        if len(predictions) != len(part):
            got = f"{len(predictions)} predictions for {len(part)} pictures"
            raise wrong(adapter, "predict", got, "one prediction for each picture")
        self._table.totals["forwards"] += 1
        self._table.totals["rows"] += rows
        return predictions

    def _advance(self, cursor: Cursor, prediction: Any, out: Outbox) -> None:
        table = self._table
        request = table.requests[cursor.key]
        skipped = cursor.skipped
        try:
            self._preview(request, cursor, prediction, out)
            table.adapter.advance(cursor, prediction)
            cursor.step += 1
            request.count(steps=1, skipped=cursor.skipped - skipped)
            table.totals["picture_steps"] += 1
            table.totals["skipped_steps"] += cursor.skipped - skipped
            if cursor.image.progress:
                out.progress(StepProgress(cursor.key, cursor.index, cursor.step, cursor.steps))
            if cursor.step >= cursor.steps:
                self._denoised(request, cursor, out)
        except Exception as error:
            table.fail(request, error, out)

    def _denoised(self, request: PictureRequest, cursor: Cursor, out: Outbox) -> None:
        table = self._table
        if not table.adapter.finite(cursor):
            raise OutputError("the latents of a picture are not finite")
        cursor.phase = Phase.DECODE
        if DECODE not in table.adapter.parts:
            table.send(request, table.adapter.latent_payload(cursor), out)
            table.done(cursor)
            table.finish(request, out)

    def _preview(self, request: PictureRequest, cursor: Cursor, prediction: Any, out: Outbox) -> None:
        """Send a preview if one is due. A preview without a credit, or without memory for it, is left out: a newer one
        follows."""
        table, every, done = self._table, cursor.image.previews, cursor.step + 1
        if not every or done % every or done >= cursor.steps or DECODE not in table.adapter.parts:
            return
        if request.leaving or not out.ready(cursor.key) or not table.memory.fits(cursor.footprint.decode):
            return
        try:
            pixels = table.adapter.preview(cursor, prediction)
        except Exception as error:
            if not table.faults.classify(error):
                raise
            table.totals["out_of_memory"] += 1
            return
        if pixels is None:
            return
        meta = {"index": cursor.index, "seed": cursor.seed, "preview": done, "side": self._side}
        table.send(request, pixels_payload(table.adapter, "preview", pixels, meta), out)
        table.totals["previews"] += 1


def halves(part: list[Cursor]) -> Sequence[list[Cursor]]:
    """Return the two halves of a batch that is too large for the memory; nothing for one picture."""
    middle = len(part) // 2
    return (part[:middle], part[middle:]) if middle else ()
