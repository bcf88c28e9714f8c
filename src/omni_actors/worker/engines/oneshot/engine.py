"""The one-shot engine: models that turn one input into one output (recogniser, acoustic model, vocoder, encoder).

An adapter cuts each request into *items*, the units of the model's input: an audio clip, a sentence, a window of
frames. Each step runs one batch of compatible items, one from each of several requests. The engine never waits for a
batch to fill: a runnable item runs now. Requests take turns, so that a request of a hundred sentences delays a request
of a single sentence by one item. Within a request items start, and their outputs leave, in order.

An item starts only when its request has a credit on every edge. A batch that raises is run again item by item, and only
the items that raise alone fail. A batch that runs out of memory is run again in halves. (See
:mod:`omni_actors.worker.isolation`.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError, overloaded
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import MAX_BATCH, MAX_REQUESTS
from omni_actors.worker.checks import InputError, OutputError
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, add_usage, check_piece, check_result
from omni_actors.worker.engines.oneshot.request import END, OneShotRequest, QueuedItem
from omni_actors.worker.isolation import BatchLimit, Faults
from omni_actors.worker.named import class_named
from omni_actors.worker.returned import counters_of, facts_of, iterable_of, kind_of, sequence_of, wrong

log = logging.getLogger(__name__)

_KEY = "a hashable value that compares with =="


class GenerationEngine(Engine):
    """The one-shot engine, which drives the :class:`GenerationAdapter` named by ``hello.adapter``."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.max_batch = max(1, hello.limits.get("max_batch", MAX_BATCH.default))
        self.max_requests = hello.limits.get("max_requests", MAX_REQUESTS.default)
        self._faults = Faults(hello)
        self._limit = BatchLimit(self.max_batch)
        self._failed_in_a_row = 0
        self._requests: dict[int, OneShotRequest] = {}
        # The requests with work, in the order of their turns. Requests that wait for input are not here.
        self._active: dict[int, OneShotRequest] = {}
        # Those of them that had the last turn. They go to the end of the queue when the next begins: what came in the
        # meantime waits for that one turn, not for two.
        self._served: list[OneShotRequest] = []
        self._batch_is_next = False
        self._totals = dict.fromkeys(
            ("batches", "batched_items", "items", "finished", "failures", "aborted", "out_of_memory"), 0
        )
        self._adapter: GenerationAdapter[Any, Any]

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self._adapter = class_named(self.hello.adapter, GenerationAdapter, "adapter")(self.hello)
        return facts_of(self._adapter, self._adapter.load(progress))

    def admit(self, work: Work) -> None:
        if len(self._requests) >= self.max_requests:
            raise overloaded(f"Stage '{self.hello.stage}' holds {self.max_requests} requests already.")
        try:
            opened = self._adapter.open(work)
            if not isinstance(opened, tuple) or len(opened) != 2:
                raise wrong(self._adapter, "open", kind_of(opened), "a tuple of the request's state and its items")
        except Exception as error:
            self._totals["failures"] += 1
            raise OmniError(self._faults.explain(error, work.request_id)) from error
        state, items = opened
        request = OneShotRequest(work, state, set(work.ports))
        self._requests[work.key] = request
        self._enqueue("open", request, items)
        log.debug("admitted with %d items", len(items), extra=_of(work))

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests.get(key)
        if request is None:
            return True
        items: Sequence[Any] = ()
        try:
            if port not in request.open_ports:
                raise RuntimeError(f"port {port!r} is not open")
            items = self._adapter.feed(request.state, port, None if payload is None else payload.copy(), end)
        except InputError:
            self._give_up(request)
            raise
        except Exception as error:
            self._give_up(request)
            raise OmniError(self._faults.explain(error, request.work.request_id)) from error
        if end:
            request.open_ports.discard(port)
        self._enqueue("feed", request, items, None if payload is None else port)
        return len(items) == 0

    def abort(self, key: int) -> None:
        request = self._requests.get(key)
        if request is not None:
            self._totals["aborted"] += 1
            self._remove(request)

    @property
    def runnable(self) -> bool:
        return bool(self._active)

    def step(self, out: Outbox) -> bool:
        # Pieces that can leave go before a new batch is begun, since that may take long; but an iterator that computes
        # its pieces must not keep batches back for ever, so the two alternate.
        if not self._batch_is_next and self._emit(out):
            self._batch_is_next = True
            return True
        self._batch_is_next = False
        return self._run_batch(out) or self._emit(out)

    def counters(self) -> dict[str, float]:
        """Return gauges and counters.

        Gauges are ``requests``, items ``waiting`` for a batch, and requests ``running`` (with output to send).
        Counters, with names in ``_total``, are batches, their items (an item that runs again counts again), completed
        items, ends of requests, and shortages of memory.
        """
        return {
            "requests": len(self._requests),
            "waiting": sum(len(r.items) for r in self._requests.values()),
            "running": sum(r.leaving for r in self._requests.values()),
            **{f"{name}_total": count for name, count in self._totals.items()},
            **counters_of(self._adapter, self._adapter.counters()),
        }

    def close(self) -> None:
        for request in list(self._requests.values()):
            self._remove(request)

    # -- one step's two halves

    def _emit(self, out: Outbox) -> bool:
        moved = False
        for request in list(self._active.values()):
            if request.leaving or request.drained:
                moved |= self._advance(request, out)
        return moved

    def _advance(self, request: OneShotRequest, out: Outbox) -> bool:
        """Send all finished pieces, or compute one piece of an iterator, as far as credits allow; finish a drained
        request."""
        key, moved = request.work.key, False
        try:
            while request.leaving and out.ready(key):
                lazy = request.lazy
                piece = request.ready.popleft() if lazy is None else next(lazy, END)
                moved = True
                if piece is END:
                    request.lazy = None
                    continue
                self._put(request, piece, out)
                if lazy is not None:
                    break
            if request.drained and not request.finishing:
                request.finishing = True
                request.ready.extend(self._last_pieces(request))
                return self._advance(request, out) or moved
        except Exception as error:
            self._fail(request, error, out)
            return True
        if request.drained:
            self._totals["finished"] += 1
            self._remove(request)
            out.finish(key, request.usage)
            return True
        if not request.items and not request.leaving:
            self._active.pop(key, None)
        return moved

    def _last_pieces(self, request: OneShotRequest) -> Iterable[Piece]:
        pieces: Iterable[Piece] = self._adapter.finish(request.state)
        return iterable_of(self._adapter, "finish", pieces, "", "a sequence of Piece")

    def _put(self, request: OneShotRequest, piece: Any, out: Outbox) -> None:
        method = "finish" if request.finishing else "run"
        check_piece(self._adapter, method, piece, request.work.key, self._adapter.tensors)
        if piece.usage is not None:
            request.usage = add_usage(request.usage, piece.usage)
        if piece.text is not None:
            out.text(msgspec.structs.replace(piece.text, usage=request.usage))
        if piece.media is not None:
            out.media(piece.media)
        if piece.payload is not None:
            out.emit(request.work.key, piece.payload)

    def _run_batch(self, out: Outbox) -> bool:
        for request in self._served:
            if self._active.pop(request.work.key, None) is not None:
                self._active[request.work.key] = request
        self._served = []
        batch = self._select(out)
        if not batch:
            return False
        if log.isEnabledFor(logging.DEBUG):
            for request in batch:
                log.debug("an item runs in a batch of %d", len(batch), extra=_of(request.work))
        self._totals["batches"] += 1
        self._totals["batched_items"] += len(batch)
        try:
            returned = self._adapter.run([r.items[0].item for r in batch])
            results = sequence_of(self._adapter, "run", returned, "a sequence with a Result or OmniError for each item")
            if len(results) != len(batch):
                got = f"{len(results)} results for {len(batch)} items"
                raise wrong(self._adapter, "run", got, "a Result or OmniError for each item")
        except Exception as error:
            self._after_failed_batch(batch, error, out)
            return True
        self._limit.succeeded()
        self._failed_in_a_row = 0
        for request, result in zip(batch, results, strict=True):
            queued = request.items.popleft()
            self._totals["items"] += 1
            if queued.port is not None:
                out.consumed(request.work.key, queued.port)
            try:
                if isinstance(result, OmniError):
                    raise result
                check_result(self._adapter, result)
                request.usage = add_usage(request.usage, result.usage)
                request.start(result.pieces)
                following = self._queued("more", self._adapter.more(request.state))
                request.items.extendleft(reversed(following))
            except Exception as error:
                self._fail(request, error, out)
                continue
            self._served.append(request)
            self._advance(request, out)
        return True

    def _select(self, out: Outbox) -> list[OneShotRequest]:
        """Return the first runnable request in turn, and others whose next item may run in the same batch."""
        batch: list[OneShotRequest] = []
        broken: list[tuple[OneShotRequest, Exception]] = []
        batch_key: Hashable = None
        for key, request in self._active.items():
            if not request.items or request.leaving or not out.ready(key):
                continue
            head = request.items[0]
            if not batch:
                batch_key = head.batch_key
            else:
                try:
                    if head.alone or head.batch_key != batch_key:
                        continue
                except Exception as error:  # the keys cannot be compared
                    broken.append((request, error))
                    continue
            batch.append(request)
            if head.alone or len(batch) >= self._limit.now:
                break
        for request, why in broken:
            log.debug("comparing batch keys raised %r", why, extra=_of(request.work))
            got = f"{kind_of(request.items[0].batch_key)}, which cannot be compared,"
            self._fail(request, wrong(self._adapter, "batch_key", got, _KEY), out)
        return batch

    # -- failures

    def _after_failed_batch(self, batch: list[OneShotRequest], error: Exception, out: Outbox) -> None:
        """Fail a lone item, or retry each of several items: alone, or in a smaller batch after a lack of memory."""
        memory = self._faults.classify(error)
        if memory:
            self._totals["out_of_memory"] += 1
            if len(batch) > 1:  # a lone item too large says nothing about batches
                self._limit.shrink(len(batch) // 2)
        if len(batch) == 1:
            self._fail(batch[0], error, out)
            if not isinstance(error, (OmniError, OutputError)):
                self._failed_in_a_row += 1
                if self._failed_in_a_row > 1:
                    self._faults.self_test(self._adapter.prove, error)
        elif not memory:
            log.warning("a batch of %d items failed; each runs alone now", len(batch), exc_info=error)
            for request in batch:
                request.items[0].alone = True

    def _fail(self, request: OneShotRequest, error: Exception, out: Outbox) -> None:
        self._give_up(request)
        out.fail(request.work.key, self._faults.explain(error, request.work.request_id))

    def _give_up(self, request: OneShotRequest) -> None:
        self._totals["failures"] += 1
        self._remove(request)

    # -- the tables

    def _enqueue(self, method: str, request: OneShotRequest, items: Sequence[Any], port: str | None = None) -> None:
        """Queue the items that ``method`` of the adapter returned."""
        try:
            queued = self._queued(method, items)
            request.items.extend(queued)
            if queued:
                queued[-1].port = port
        except Exception as error:
            self._give_up(request)
            raise OmniError(self._faults.explain(error, request.work.request_id)) from error
        if request.items or request.drained:
            self._active.setdefault(request.work.key, request)

    def _queued(self, method: str, items: Sequence[Any]) -> list[QueuedItem]:
        """Return the items that a method gave, each with its batch key."""
        found = []
        for item in sequence_of(self._adapter, method, items):
            batch_key = self._adapter.batch_key(item)
            try:
                hash(batch_key)
            except TypeError:
                raise wrong(self._adapter, "batch_key", kind_of(batch_key), _KEY) from None
            found.append(QueuedItem(item, batch_key))
        return found

    def _remove(self, request: OneShotRequest) -> None:
        del self._requests[request.work.key]
        self._active.pop(request.work.key, None)
        self._served = [it for it in self._served if it is not request]
        try:
            if request.lazy is not None and (close := getattr(request.lazy, "close", None)) is not None:
                close()
            self._adapter.close(request.state)
        except Exception:
            log.exception("the request's state did not close", extra=_of(request.work))


def _of(work: Work) -> dict[str, str]:
    """Return the request's id for a log line."""
    return {"request": work.request_id}
