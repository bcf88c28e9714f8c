"""The diffusion engine: every picture is a cursor, and a step is one forward over the cursors that can share it.

A cursor owns its latents, its scheduler, its draws, its conditioning and its caches. Cursors join, leave and pause
between steps: whatever their number of steps, their guidance or the length of their prompts, cursors whose next steps
have equal keys share a forward. One unit of work is a forward, or one slice of encoding or decoding; slices and
forwards alternate, so that a long decode stops nobody's steps.

A batch that raises is run again in parts, until the requests that fail alone are known (see
:mod:`omni_actors.worker.isolation`). For that a forward changes no cursor: predictions are taken into the cursors once
the whole batch has been computed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError, overloaded
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import MAX_REQUESTS
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import StepProgress
from omni_actors.worker.checks import InputError, OutputError
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.diffusion.adapter import DECODE, DENOISE, ENCODE, DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.fairness import Fairness
from omni_actors.worker.engines.diffusion.memory import MemoryBudget
from omni_actors.worker.engines.diffusion.options import OPTIONS
from omni_actors.worker.engines.diffusion.request import PictureRequest, live
from omni_actors.worker.isolation import BatchLimit, Faults, run_bisecting
from omni_actors.worker.named import class_named
from omni_actors.worker.returned import counters_of, facts_of, kind_of, sequence_of, wrong

log = logging.getLogger(__name__)

_COUNTERS = (
    *("pictures", "steps", "skipped_steps", "forwards", "rows", "encodes", "decodes", "previews"),
    *("finished", "failures", "aborted", "out_of_memory"),
)


class _Slices:
    """Encoding or decoding under way, slice by slice."""

    def __init__(self, phase: Phase, cursors: list[Cursor], work: Iterator[Sequence[Any] | None]) -> None:
        self.phase = phase
        self.cursors = cursors
        self.work = work


class DiffusionEngine(Engine):
    """The diffusion engine, which drives the :class:`~.adapter.DiffusionAdapter` named by ``hello.adapter``."""

    def __init__(self, hello: Hello, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(hello)
        self._clock = clock
        self.max_requests = hello.limits.get("max_requests", MAX_REQUESTS.default)
        self._options = filled(OPTIONS, hello.options)
        self._faults = Faults(hello)
        self._rows = BatchLimit(self._options["max_rows"])
        self._fairness = Fairness(clock)
        self._memory = MemoryBudget(self._options["memory_bytes"])
        self._requests: dict[int, PictureRequest] = {}
        self._arrivals = 0
        self._slices: _Slices | None = None
        self._slice_is_next = False
        self._failed_in_a_row = 0
        self._totals = dict.fromkeys(_COUNTERS, 0)
        self._adapter: DiffusionAdapter

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self._adapter = class_named(self.hello.adapter, DiffusionAdapter, "adapter")(self.hello)
        return facts_of(self._adapter, self._adapter.load(progress))

    # ---- requests

    def admit(self, work: Work) -> None:
        if len(self._requests) >= self.max_requests:
            raise overloaded(f"Stage '{self.hello.stage}' holds {self.max_requests} requests already.")
        image = work.params.get("image") or ImageGeneration()
        try:
            opened = self._adapter.open(work, image)
            cursors = list(sequence_of(self._adapter, "open", opened, "a sequence of Cursor"))
            for cursor in cursors:
                self._memory.check(cursor.footprint, f"A picture of {cursor.width}x{cursor.height} pixels")
        except Exception as error:
            self._totals["failures"] += 1
            raise OmniError(self._faults.explain(error, work.request_id)) from error
        request = PictureRequest(work, cursors, set(work.ports), self._arrivals)
        self._arrivals += 1
        self._requests[work.key] = request
        for cursor in cursors:
            cursor.phase = Phase.INPUT if request.open_ports else self._first_phase
            self._fairness.enter(cursor)

    @property
    def _first_phase(self) -> Phase:
        parts = self._adapter.parts
        return Phase.ENCODE if ENCODE in parts else Phase.DENOISE if DENOISE in parts else Phase.DECODE

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests.get(key)
        if request is None:
            return True
        try:
            if port not in request.open_ports:
                raise RuntimeError(f"port {port!r} is not open")
            self._adapter.feed(request.cursors, port, payload, end)
            if end:
                request.open_ports.discard(port)
            if not request.open_ports:
                for cursor in request.cursors:
                    self._restore(cursor)
        except InputError:
            self._give_up(request)
            raise
        except Exception as error:
            self._give_up(request)
            raise OmniError(self._faults.explain(error, request.work.request_id)) from error
        return True

    def _restore(self, cursor: Cursor) -> None:
        """Begin a cursor whose input is complete, from another stage's payload if this stage does not encode."""
        cursor.phase = self._first_phase
        if ENCODE in self._adapter.parts:
            return
        for payload in (it for inputs in cursor.inputs.values() for it in inputs):
            if payload.kind == "conditioning" or payload.meta.get("index") == cursor.index:
                self._adapter.restore(cursor, payload)

    def abort(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            self._totals["aborted"] += 1
            self._remove(request)

    @property
    def runnable(self) -> bool:
        return self._slices is not None or any(
            cursor.phase not in (Phase.INPUT, Phase.DONE)
            for request in self._requests.values()
            for cursor in request.cursors
        )

    # ---- one unit of work

    def step(self, out: Outbox) -> bool:
        if self._slices is not None and not live(self._slices.cursors, self._requests):
            self._drop_slices()
        candidates = self._candidates(out)
        if self._slices is not None:
            busy = set(self._slices.cursors)
            steps = [it for it in candidates if it.phase is Phase.DENOISE and it not in busy]
            if self._slice_is_next or not steps:
                self._slice_is_next = False
                self._measured(self._slices.cursors, candidates, lambda: self._advance_slices(out))
                return True
            self._slice_is_next = True
            candidates = steps
        if not candidates:
            return False
        batch = self._batch(candidates)
        if batch[0].phase is Phase.DENOISE:
            self._measured(batch, candidates, lambda: self._denoise(batch, out))
        else:
            self._begin_slices(batch)
            self._measured(batch, candidates, lambda: self._advance_slices(out))
        return True

    def _measured(self, batch: Sequence[Cursor], candidates: Sequence[Cursor], unit: Callable[[], None]) -> None:
        working = list(batch)
        waiting = [cursor for cursor in candidates if cursor not in set(working)]
        begin = self._clock()
        unit()
        self._fairness.worked(working, waiting, self._clock() - begin)

    def _candidates(self, out: Outbox) -> list[Cursor]:
        """Return the admitted cursors that can work now, the most urgent first."""
        found = []
        for request in self._requests.values():
            encoding = False
            for cursor in request.cursors:
                if cursor.phase is Phase.ENCODE:
                    # The first stands for all: they share their conditioning.
                    if not encoding:
                        found.append(cursor)
                    encoding = True
                elif cursor.phase is Phase.DENOISE or (cursor.phase is Phase.DECODE and out.ready(cursor.key)):
                    found.append(cursor)
        return [cursor for cursor in self._fairness.order(found) if self._memory.admit(cursor)]

    def _batch(self, candidates: Sequence[Cursor]) -> list[Cursor]:
        """Return the most urgent cursor and those that may share its next unit of work, as far as rows and memory
        go."""
        head = candidates[0]
        key = self._key(head)
        equal = [it for it in candidates if it.phase is head.phase and (it is head or self._key(it) == key)]
        chosen: list[Cursor] = []
        rows = 0
        for cursor in self._memory.fitting(equal, head.phase):
            rows += self._adapter.rows(cursor) if head.phase is Phase.DENOISE else 1
            if chosen and rows > self._rows.now:
                break
            chosen.append(cursor)
        return chosen

    def _key(self, cursor: Cursor) -> Any:
        if cursor.phase is Phase.ENCODE:
            return self._adapter.encode_key(cursor)
        if cursor.phase is Phase.DECODE:
            return self._adapter.decode_key(cursor)
        if cursor.scheduler is None:
            self._adapter.begin(cursor)
        return self._adapter.batch_key(cursor)

    # ---- encoding and decoding

    def _begin_slices(self, batch: list[Cursor]) -> None:
        encode = batch[0].phase is Phase.ENCODE
        work = self._adapter.encode(batch) if encode else self._adapter.decode(batch)
        self._slices = _Slices(batch[0].phase, batch, iter(work))

    def _advance_slices(self, out: Outbox) -> None:
        slices = self._slices
        assert slices is not None
        try:
            results = next(slices.work)
        except StopIteration:
            error: Exception = wrong(self._adapter, slices.phase.value, "no results", "results in its last slice")
            self._slices_failed(slices, error, out)
        except Exception as raised:
            self._slices_failed(slices, raised, out)
        else:
            if results is not None:
                self._slices_done(slices, results, out)

    def _slices_failed(self, slices: _Slices, error: Exception, out: Outbox) -> None:
        """Fail a lone request; several run again alone."""
        self._drop_slices()
        memory = self._faults.classify(error)
        self._totals["out_of_memory"] += memory
        left = live(slices.cursors, self._requests)
        if len(left) == 1:
            self._fail(self._requests[left[0].key], error, out)
            self._failed(error)
        for cursor in left if len(left) > 1 else ():
            self._begin_slices([cursor])
            alone = self._slices
            while self._slices is alone and alone is not None:
                self._advance_slices(out)

    def _slices_done(self, slices: _Slices, results: Sequence[Any], out: Outbox) -> None:
        self._drop_slices()
        name = slices.phase.value
        if len(results) != len(slices.cursors):
            got = f"{len(results)} results for {len(slices.cursors)} pictures"
            self._slices_failed(slices, wrong(self._adapter, name, got, "one result for each picture"), out)
            return
        self._failed_in_a_row = 0
        self._totals[f"{name}s"] += len(results)
        for cursor, result in zip(slices.cursors, results, strict=True):
            request = self._requests.get(cursor.key)
            if request is None:
                continue
            try:
                if slices.phase is Phase.ENCODE:
                    self._encoded(request, result, out)
                else:
                    self._decoded(request, cursor, result, out)
            except Exception as error:
                self._fail(request, error, out)

    def _encoded(self, request: PictureRequest, conditioning: Any, out: Outbox) -> None:
        for cursor in request.cursors:
            cursor.conditioning = conditioning
            cursor.phase = Phase.DENOISE
        if DENOISE not in self._adapter.parts:
            out.emit(request.work.key, self._adapter.conditioning_payload(request.cursors[0]))
            for cursor in request.cursors:
                self._done(request, cursor, out)

    def _decoded(self, request: PictureRequest, cursor: Cursor, pixels: Any, out: Outbox) -> None:
        layers = pixels if isinstance(pixels, list) else [pixels]
        for place, layer in enumerate(layers):
            meta: dict[str, Any] = {"index": cursor.index * len(layers) + place, "seed": cursor.seed}
            if len(layers) > 1:
                meta["layer"] = place
            out.emit(cursor.key, Payload("pixels", meta, {"pixels": self._checked("decode", layer)}))
        request.count(images=len(layers))
        self._totals["pictures"] += len(layers)
        self._done(request, cursor, out)

    def _checked(self, method: str, pixels: Any) -> np.ndarray[Any, Any]:
        right = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3
        if not right or pixels.shape[2] not in (1, 3, 4):
            raise wrong(self._adapter, method, kind_of(pixels), "an array uint8 [height, width, 1, 3 or 4]")
        array: np.ndarray[Any, Any] = np.ascontiguousarray(pixels)
        return array

    def _done(self, request: PictureRequest, cursor: Cursor, out: Outbox) -> None:
        cursor.phase = Phase.DONE
        self._memory.release(cursor)
        self._fairness.leave(cursor)
        if request.over:
            self._totals["finished"] += 1
            self._remove(request)
            out.finish(request.work.key, request.usage)

    # ---- denoising

    def _denoise(self, batch: list[Cursor], out: Outbox) -> None:
        def run(part: list[Cursor]) -> Sequence[Any]:
            predictions = sequence_of(self._adapter, "predict", self._adapter.predict(part), "a prediction for each")
            if len(predictions) != len(part):
                got = f"{len(predictions)} predictions for {len(part)} pictures"
                raise wrong(self._adapter, "predict", got, "one prediction for each picture")
            self._totals["forwards"] += 1
            self._totals["rows"] += sum(map(self._adapter.rows, part))
            return predictions

        found = run_bisecting([batch], run, lambda cursor: cursor.key, self._faults)
        if found.short:
            self._totals["out_of_memory"] += 1
            self._rows.shrink(max((len(part) for part, _ in found.done), default=1))
        else:
            self._rows.succeeded()
        for key, error in found.failed.items():
            self._fail(self._requests[key], error, out)
        for part, predictions in found.done:
            self._failed_in_a_row = 0
            for cursor, prediction in zip(part, predictions, strict=True):
                if cursor.key in self._requests:
                    self._advance(cursor, prediction, out)
        if found.failed and not found.done:
            self._failed(next(iter(found.failed.values())))

    def _advance(self, cursor: Cursor, prediction: Any, out: Outbox) -> None:
        request = self._requests[cursor.key]
        skipped = cursor.skipped
        try:
            self._preview(cursor, prediction, out)
            self._adapter.advance(cursor, prediction)
            cursor.step += 1
            request.count(steps=1, skipped=cursor.skipped - skipped)
            self._totals["steps"] += 1
            self._totals["skipped_steps"] += cursor.skipped - skipped
            if cursor.image.progress:
                out.progress(StepProgress(cursor.key, cursor.index, cursor.step, cursor.steps))
            if cursor.step < cursor.steps:
                return
            cursor.phase = Phase.DECODE
            if DECODE not in self._adapter.parts:
                out.emit(cursor.key, self._adapter.latent_payload(cursor))
                self._done(request, cursor, out)
        except Exception as error:
            self._fail(request, error, out)

    def _preview(self, cursor: Cursor, prediction: Any, out: Outbox) -> None:
        """Send a preview if one is due. A preview without a credit is left out: a newer one follows."""
        every, done = cursor.image.previews, cursor.step + 1
        if not every or done % every or done >= cursor.steps or DECODE not in self._adapter.parts:
            return
        if not out.ready(cursor.key):
            return
        pixels = self._adapter.preview(cursor, prediction)
        if pixels is None:
            return
        meta = {"index": cursor.index, "seed": cursor.seed, "preview": done, "side": self._options["preview_side"]}
        out.emit(cursor.key, Payload("pixels", meta, {"pixels": self._checked("preview", pixels)}))
        self._totals["previews"] += 1

    # ---- ends

    def _failed(self, error: Exception) -> None:
        """Find out whether the model is broken, when nothing succeeds any more."""
        if isinstance(error, OmniError | OutputError):
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row > 1:
            self._faults.self_test(self._adapter.prove, error)

    def _fail(self, request: PictureRequest, error: Exception, out: Outbox) -> None:
        self._give_up(request)
        out.fail(request.work.key, self._faults.explain(error, request.work.request_id))

    def _give_up(self, request: PictureRequest) -> None:
        self._totals["failures"] += 1
        self._remove(request)

    def _remove(self, request: PictureRequest) -> None:
        self._requests.pop(request.work.key, None)
        for cursor in request.cursors:
            self._memory.release(cursor)
            self._fairness.leave(cursor)
            try:
                self._adapter.close(cursor)
            except Exception:
                log.exception("a picture's state did not close", extra={"request": request.work.request_id})

    def _drop_slices(self) -> None:
        slices, self._slices = self._slices, None
        if slices is not None and (close := getattr(slices.work, "close", None)) is not None:
            close()

    def counters(self) -> dict[str, float]:
        """Return gauges (``requests``, ``cursors``, ``memory_bytes``) and counters with names in ``_total``."""
        return {
            "requests": len(self._requests),
            "cursors": sum(len(request.cursors) for request in self._requests.values()),
            "memory_bytes": self._memory.held,
            **{f"{name}_total": count for name, count in self._totals.items()},
            **counters_of(self._adapter, self._adapter.counters()),
        }

    def close(self) -> None:
        self._drop_slices()
        for request in list(self._requests.values()):
            self._remove(request)
