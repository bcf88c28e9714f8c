"""Prefill/decode disaggregation: one engine computes prompts, and another engine continues with them.

The payloads are defined in :mod:`omni_actors.worker.kv`. The last payload holds the state outside the cache: the
prompt's tokens, the logits (and hidden state) after the last token, the prompt's log-probabilities if asked for, and
the adapter's state (:meth:`~omni_actors.worker.engines.autoregressive.adapter.AutoregressiveAdapter.export_state`). The
decode engine samples from the logits as if it had computed them, so choices, seeds and stop strings belong to the
decode engine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from omni_actors.connectors.device import CONNECTOR as DEVICE
from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import TokenLogprob
from omni_actors.worker import kv
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.autoregressive.adapter import State
from omni_actors.worker.engines.autoregressive.attention import KVCache
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.request import PromptRequest
from omni_actors.worker.engines.autoregressive.scheduler import Scheduler, Swap
from omni_actors.worker.engines.autoregressive.sequence import Sequence
from omni_actors.worker.tensors import tensor_of, tensor_payload

PORT = "kv"

PAYLOAD_BYTES = 64 << 20
"""Bytes of rows in one payload, at most. Rows from the prefix cache are sent in pieces, too."""


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """The state of a computed prompt beside the cache.

    ``logits`` is float32 [1, vocabulary], ``hidden`` [1, width] or ``None``. ``cached`` counts the prompt's tokens that
    the prefill engine found in its cache. ``most`` is the adapter's own bound on the answer.
    """

    tokens: list[int]
    logits: torch.Tensor
    hidden: torch.Tensor | None
    cached: int
    continued: bool
    most: int | None
    prompt_logprobs: list[TokenLogprob]
    state: State

    def output(self, device: torch.device) -> StepOutput:
        """Return the output of the step that computed the prompt's last token."""
        return StepOutput(self.logits.to(device), None if self.hidden is None else self.hidden.to(device))

    @property
    def meta(self) -> dict[str, Any]:
        facts = {"cached": self.cached, "continued": self.continued, "most": self.most, "state": self.state.facts}
        return {"handover": facts}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the parts that are too large for metadata, as the tensors of a payload."""
        tensors = {f"state.{name}": tensor for name, tensor in self.state.tensors.items()} | {"logits": self.logits}
        if self.hidden is not None:
            tensors["hidden"] = self.hidden
        tensors["tokens"] = torch.tensor(self.tokens)
        if self.prompt_logprobs:
            packed = msgspec.msgpack.encode(self.prompt_logprobs)
            tensors["prompt_logprobs"] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        return tensors

    @classmethod
    def of(cls, payload: Payload) -> PrefillResult | None:
        """Return the hand-over in a payload; ``None`` if the payload is not the last one. The tensors are copies."""
        meta = payload.meta.get("handover")
        if meta is None:
            return None
        names = [name for name in payload.tensors if name.startswith("state.")]
        scores = payload.tensors.get("prompt_logprobs")
        return cls(
            tokens=payload.tensors["tokens"].tolist(),
            logits=tensor_of(payload, "logits"),
            hidden=tensor_of(payload, "hidden") if "hidden" in payload.tensors else None,
            cached=meta["cached"],
            continued=meta["continued"],
            most=meta["most"],
            prompt_logprobs=[] if scores is None else msgspec.msgpack.decode(scores.tobytes(), type=list[TokenLogprob]),
            state=State(meta["state"], {name.removeprefix("state."): tensor_of(payload, name) for name in names}),
        )


@dataclass(slots=True)
class _OutgoingPrompt:
    sequence: Sequence
    question: Payload
    asked: bool = False
    granted: bool = False
    sent: int = 0
    last: PrefillResult | None = None


class KVProducer:
    """The prompts that leave the prefill engine, by request.

    A prompt is computed once the decode engine has room for it. Rows leave as soon as they are computed, so that the
    transfer of one part runs beside the computation of the next part. The computation waits for no credit.
    """

    def __init__(self, hello: Hello, cache: KVCache) -> None:
        self._cache = cache
        self._layout = _layout_of(hello, cache)
        self._on_device = any(it.kind == kv.KIND and it.connector == DEVICE for it in hello.outputs)
        self._tokens = max(1, PAYLOAD_BYTES // cache.shape.token_bytes)
        self._by_key: dict[int, _OutgoingPrompt] = {}
        self._total = 0  # tokens sent

    def add(self, sequence: Sequence, *, sampled: bool) -> None:
        """Add a complete prompt. ``sampled`` says that tokens will follow."""
        question = kv.ask(len(sequence.tokens), self._layout)
        question.meta["sampled"] = sampled
        self._by_key[sequence.key] = _OutgoingPrompt(sequence, question)

    def granted(self, key: int) -> bool:
        """Whether the decode engine has room for the prompt."""
        export = self._by_key.get(key)
        return export is not None and export.granted

    def computed(self, request: PromptRequest, output: StepOutput, row: int, state: State) -> None:
        """Take note that the whole prompt is computed, with its next token's logits in ``row`` of the step's output.

        The sequence keeps its blocks until its rows have left.
        """
        first = request.first
        self._by_key[first.key].last = PrefillResult(
            first.tokens,
            output.logits[row : row + 1].clone(),
            None if output.hidden is None else output.hidden[row : row + 1].clone(),
            first.cached or 0,
            request.continued,
            request.most,
            request.prompt_logprobs,
            state,
        )
        first.pinned = True

    @property
    def pending(self) -> bool:
        """Whether :meth:`send` has work, given credit."""
        return any(not e.granted or e.sequence.computed > e.sent for e in self._by_key.values())

    def send(self, out: Outbox) -> tuple[list[int], dict[int, Exception]] | None:
        """Emit one payload for each request with a credit.

        Returns:
            The completed requests, and the failed requests; ``None`` if nothing was sent.
        """
        moved, through, failed = False, list[int](), dict[int, Exception]()
        for key, export in self._by_key.items():
            if export.granted and export.sequence.computed <= export.sent:
                continue
            if not out.ready(key):
                continue
            moved = True
            if not export.asked:
                export.asked = True
                out.emit(key, export.question)
                continue
            export.granted = True  # the credit of the question has come back
            try:
                if self._send_rows(key, export, out):
                    through.append(key)
            except Exception as error:
                failed[key] = error
        return (through, failed) if moved else None

    def remove(self, key: int) -> None:
        self._by_key.pop(key, None)

    def counters(self) -> dict[str, float]:
        """Return ``kv_exports``, the number of prompts that have not left yet."""
        return {"kv_exports": len(self._by_key), "kv_exported_tokens_total": self._total}

    def _send_rows(self, key: int, export: _OutgoingPrompt, out: Outbox) -> bool:
        sequence, start = export.sequence, export.sent
        count = min(sequence.computed - start, self._tokens)
        if count <= 0:
            return False
        export.sent += count
        self._total += count
        whole = export.sent == len(sequence.tokens)
        meta: dict[str, Any] = {"start": start, "tokens": count}
        last = dict[str, torch.Tensor]()
        if whole:
            assert export.last is not None
            meta |= export.last.meta
            last = export.last.tensors()
        if self._on_device:
            rows = kv.gather(self._cache, sequence.blocks, start, count)
            out.emit(key, tensor_payload(kv.KIND, meta, rows | last))
            return whole
        more = tensor_payload(kv.KIND, {}, last)
        specs = dict(kv.specs(self._cache.shape, count)) | {
            name: (array.shape, more.dtypes.get(name, array.dtype.name)) for name, array in more.tensors.items()
        }
        payload = out.allocate(key, kv.KIND, meta, specs)
        kv.fill(self._cache, sequence.blocks, payload)
        for name, array in more.tensors.items():
            np.copyto(payload.tensors[name], array)
        out.emit(key, payload)
        return whole


@dataclass(slots=True)
class _IncomingPrompt:
    request: PromptRequest
    tokens: int
    blocks: int
    granted: bool = False
    last: PrefillResult | None = None


class KVConsumer:
    """The prompts that arrive at the decode engine, in the order in which they asked for room.

    A reservation holds blocks and places in the batch until the prompt is there. No other request can take them, since
    only the prefill engine could compute the prompt again. Running requests come first; reservations are granted in the
    order of the questions.
    """

    def __init__(self, hello: Hello, cache: KVCache, pool: BlockPool, scheduler: Scheduler) -> None:
        self._cache = cache
        self._pool = pool
        self._scheduler = scheduler
        self._layout = _layout_of(hello, cache)
        self._by_key: dict[int, _IncomingPrompt] = {}
        self._total = 0  # tokens received

    def feed(self, request: PromptRequest, payload: Payload | None, end: bool, check: Callable[[], object]) -> bool:
        """Take a payload of the edge.

        Args:
            request: The request.
            payload: The payload, or ``None`` for a bare end.
            end: Whether the port ends.
            check: Raises when a prompt of ``request.first.prompt_len`` tokens is too long.

        Returns:
            Whether the payload is consumed. A question for room is not consumed.

        Raises:
            OmniError: The layouts of the two caches differ.
        """
        coming = self._by_key.get(request.work.key)
        if payload is not None and coming is None:
            if difference := self._layout.difference(payload.meta["layout"]):
                raise OmniError(
                    ErrorInfo(
                        message=f"The prefill pool's keys and values do not fit the decode pool: {difference}.",
                        type="configuration_error",
                        code="kv_layout",
                        status=500,
                    )
                )
            first = request.first
            first.prompt_len = int(payload.meta["ask"])
            request.final = not payload.meta["sampled"]
            check()
            blocks = self._pool.blocks_for(first.prompt_len + payload.meta["sampled"])
            self._by_key[first.key] = _IncomingPrompt(request, first.prompt_len, blocks)
            return False
        if payload is not None and coming is not None:
            first = coming.request.first
            arrived = kv.insert(self._cache, first.blocks, payload)
            if arrived.start != first.computed:
                raise ValueError(f"tokens from {arrived.start} on, where those from {first.computed} on were due")
            first.computed = arrived.stop
            self._total += len(arrived)
            coming.last = PrefillResult.of(payload)
        if end and (coming is None or coming.last is None):
            raise ValueError("the end of the edge, before the end of the prompt")
        return True

    @property
    def pending(self) -> bool:
        """Whether :meth:`grant` or :meth:`arrived` may have work."""
        return any(i.last is not None or not i.granted for i in self._by_key.values())

    def grant(self, out: Outbox, ready: Callable[[int], bool]) -> bool:
        """Reserve room for the next requests in order; return whether any was granted."""
        granted = False
        for coming in self._by_key.values():
            if coming.granted:
                continue
            if not self._has_room(coming, ready):
                break  # nobody overtakes
            coming.request.first.blocks = self._pool.allocate(coming.blocks)
            coming.granted = granted = True
            out.consumed(coming.request.work.key, PORT)
        return granted

    def arrived(self, ready: Callable[[int], bool]) -> Iterator[tuple[PromptRequest, PrefillResult]]:
        """Take out the complete prompts whose requests are ``ready`` for a first token.

        Their sequences are as if they had been computed in this engine.
        """
        for key, coming in list(self._by_key.items()):
            if (last := coming.last) is None or not ready(key):
                continue
            del self._by_key[key]
            request, first = coming.request, coming.request.first
            first.tokens, first.prompt_len, first.sealed = last.tokens, len(last.tokens), True
            first.cached, first.reached = last.cached, first.computed
            request.continued, request.most = last.continued, last.most
            request.prompt_logprobs = last.prompt_logprobs
            yield request, last

    def remove(self, key: int) -> None:
        """Forget a request. Its blocks belong to its sequence."""
        self._by_key.pop(key, None)

    def counters(self) -> dict[str, float]:
        """Return gauges: ``kv_imports``, prompts that have not arrived; ``kv_blocks_reserved``, the blocks reserved for
        them; ``swapped``, sequences with keys and values in host memory."""
        return {
            "kv_imports": len(self._by_key),
            "kv_imported_tokens_total": self._total,
            "kv_blocks_reserved": sum(len(i.request.first.blocks) for i in self._by_key.values()),
            "swapped": sum(sequence.saved is not None for sequence in self._scheduler.waiting),
        }

    def _has_room(self, coming: _IncomingPrompt, ready: Callable[[int], bool]) -> bool:
        scheduler = self._scheduler
        if coming.blocks > self._pool.available:
            return False
        if any(s.pending > 0 and ready(s.key) for s in scheduler.waiting):
            return False
        # Sequences in host memory count, too, which bounds the host memory.
        taken = len(scheduler.running) + len(scheduler.waiting)
        taken += sum(i.request.sampling.n for i in self._by_key.values() if i.granted)
        return not taken or taken + coming.request.sampling.n <= scheduler.max_running


def swap_of(cache: KVCache) -> Swap:
    """Return the swap by which the decode engine makes room, since it could not compute a prompt again."""
    return Swap(
        save=lambda sequence: kv.extract(cache, sequence.blocks, 0, sequence.computed),
        restore=lambda sequence, saved: kv.insert(cache, sequence.blocks, saved),
    )


def _layout_of(hello: Hello, cache: KVCache) -> kv.Layout:
    return kv.Layout.of(cache.shape, kv.model_identity(hello.model, hello.adapter))
