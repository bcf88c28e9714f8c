"""The autoregressive engine: continuous batching over a paged KV cache.

One step computes some tokens of every runnable sequence in one pass of the network (:mod:`~.scheduler` says which),
samples one token for each sequence that is complete so far, and emits the text that is certain. An engine with a role
(:class:`EngineOptions`) does either the prefill or the decode part of that: see :mod:`~.disaggregation`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import OutputError
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.cache import BlockPool
from omni_actors.worker.engines.autoregressive.capture import capture_steps
from omni_actors.worker.engines.autoregressive.checks import state_of
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.disaggregation import KVConsumer, KVProducer, swap_of
from omni_actors.worker.engines.autoregressive.options import EngineOptions
from omni_actors.worker.engines.autoregressive.output import emit_outputs
from omni_actors.worker.engines.autoregressive.prompts import PromptTable
from omni_actors.worker.engines.autoregressive.ranks import follow, lead
from omni_actors.worker.engines.autoregressive.request import PromptRequest, keep_logprobs, resume
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.sampler import Sampler
from omni_actors.worker.engines.autoregressive.scheduler import Scheduler
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence
from omni_actors.worker.engines.autoregressive.step import IsolatedStep
from omni_actors.worker.returned import flag_of

log = logging.getLogger(__name__)


class AutoregressiveEngine(Engine):
    """Drives one :class:`AutoregressiveAdapter`, named by ``hello.adapter``. Options: :class:`EngineOptions`."""

    _adapter: AutoregressiveAdapter

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: EngineOptions = EngineOptions.of(hello)
        self._prompts = PromptTable(
            hello,
            self.options,
            self._forget,
            totals=("computed_tokens", "recomputed_prompt_tokens"),
            prompt_only=self.options.role == "prefill",
        )
        self._requests, self._totals = self._prompts.requests, self._prompts.totals
        self._faults = self._prompts.faults
        self._over: dict[int, list[Choice]] = {}  # by request: choices of which an earlier attempt has told everything
        self._group: Group = ALONE
        self._producer: KVProducer | None = None
        self._consumer: KVConsumer | None = None
        self._runner: ModelRunner
        self._isolated: IsolatedStep
        self._pool: BlockPool
        self._scheduler: Scheduler
        self._sampler: Sampler

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        adapter, info = lead(self.hello, self.followers, progress)
        self._group = adapter.group
        self.attach(adapter)
        progress("warming up", None)
        self._runner.warm_up(self._pool, self._prompts.max_len)
        capture_steps(self._runner, adapter, self._faults, self.options.max_batch, self._prompts.max_len, progress)
        return {
            "max_model_len": self._prompts.max_len,
            "vocab_size": self._adapter.vocab_size,
            "kv_blocks": self._pool.total,
            "block_size": self._pool.block_size,
            **info,
        }

    def follow(self, control: socket.socket, rendezvous: int) -> None:
        follow(self.hello, self._faults.runtime.kernels, control, rendezvous)

    def attach(self, adapter: AutoregressiveAdapter) -> None:
        """Use a loaded adapter, with a new cache."""
        options = self.options
        blocks = options.blocks(adapter.decoder.kv_shape.token_bytes)
        self._adapter = adapter
        # Prompts come computed to the second half of a split stage: there is nothing to look up there.
        self._pool = BlockPool(blocks, options.block_size, options.prefix_cache and options.role != "decode")
        kernels = self._faults.runtime.kernels
        self._runner = ModelRunner(adapter.decoder, blocks, options.block_size, kernels, self.followers)
        most = max(options.step_tokens, options.max_batch)
        self._isolated = IsolatedStep(self._runner, adapter, most, self._faults, self._prompts.token_bytes, kernels)
        cache = self._runner.cache
        swap = swap_of(cache) if options.role == "decode" else None
        self._scheduler = Scheduler(self._pool, options.max_batch, options.step_tokens, swap)
        self._sampler = Sampler(
            self._prompts, self._isolated, self._runner, self._scheduler, self._resume, self._discard_kv
        )
        if options.role == "prefill":
            self._producer = KVProducer(self.hello, cache)
        elif options.role == "decode":
            self._consumer = KVConsumer(self.hello, cache, self._pool, self._scheduler)
        # A sequence alone must always fit: that is what makes preemption end.
        max_len = min(adapter.max_model_len, blocks * options.block_size)
        self._prompts.attach(adapter, max_len)
        if max_len < adapter.max_model_len:
            log.warning("the KV cache holds %d tokens, so the context length is reduced to that", max_len)

    # ---- requests

    def admit(self, work: Work) -> None:
        request = self._prompts.admit(work)
        if self._consumer is not None:
            request.opened = False  # its prompt comes computed
            return
        try:
            self._extend(request, self._prompts.open(request))
            if work.key not in self._over:
                self._scheduler.add(request.first)
        except BaseException:
            self._prompts.remove(work.key)
            raise

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests[key]
        if self._consumer is not None:
            return self._consumer.feed(request, payload, end, lambda: self._prompts.limit(request))
        self._extend(request, self._prompts.feed(request, port, payload, end))
        return True

    def abort(self, key: int) -> None:
        self._prompts.abort(key)

    def _extend(self, request: PromptRequest, prompt: PromptInput) -> None:
        """Extend a prompt. The prompt is computed as early as possible, also before it is whole."""
        first = request.first
        if request.wants_prompt_logprobs and not first.sealed:
            first.logprob_positions = range(1, len(first.tokens) + len(prompt.tokens))
        limit = self._prompts.extend(request, prompt)
        if limit is not None:
            self._start(request, limit)

    def _start(self, request: PromptRequest, limit: int) -> None:
        """The prompt is whole; each choice of the answer may have ``limit`` tokens."""
        first = request.first
        if self._producer is not None:
            self._producer.add(first, sampled=not request.final)
            return
        request.choices.append(self._prompts.choice(request, first, limit))
        if request.sampling.n == 1:  # else when the prompt is computed, which they share
            self._resume(request)

    def _resume(self, request: PromptRequest) -> list[Choice]:
        """Bring the choices to the end of an earlier attempt, and return the choices that can continue at once."""
        due, over = resume(request, self._adapter)
        self._totals["resumed_tokens"] += sum(choice.completion_tokens for choice in request.choices)
        if over:
            self._over[request.work.key] = over
            for choice in over:
                self._scheduler.remove(choice.sequence)
        return due

    def _forget(self, request: PromptRequest) -> None:
        """A request has left: see :class:`PromptTable`."""
        key = request.work.key
        self._over.pop(key, None)
        for half in (self._producer, self._consumer):
            if half is not None:
                half.remove(key)
        for sequence in request.sequences:
            self._scheduler.remove(sequence)

    # ---- one step

    @property
    def runnable(self) -> bool:
        halves = (half for half in (self._producer, self._consumer) if half is not None)
        return self._scheduler.runnable or bool(self._over) or any(half.pending for half in halves)

    def step(self, out: Outbox) -> bool:
        exports, broken = self._producer, dict[int, Exception]()

        def ready(key: int) -> bool:
            # A prompt on its way out needs no credit to be computed, only to leave.
            if key in broken or not (out.ready(key) if exports is None else exports.granted(key)):
                return False
            try:
                return flag_of(
                    self._adapter, "ready", self._adapter.ready(key), "whether the next step's input is there"
                )
            except Exception as error:
                broken[key] = error
                return False

        moved = self._send(out)
        moved |= self._take_over(out, ready)
        moved |= self._repeat(out)
        chunks = self._scheduler.schedule(ready)
        if broken:
            moved = True
            chunks = [chunk for chunk in chunks if chunk.sequence.key not in broken]
            for key, error in broken.items():
                self._prompts.fail(key, error, out)
        if not chunks:
            return moved
        computed = self._isolated.compute(chunks)
        chunks, output = computed.chunks, computed.output
        self._totals["steps"] += 1
        self._totals["computed_tokens"] += sum(c.count for c in chunks)
        self._totals["recomputed_prompt_tokens"] += sum(c.num_recomputed for c in chunks)
        for key, error in computed.failed.items():
            self._discard_kv(key, error, out)
        if output is None:
            again = partial(self._runner.warm_up, self._pool, self._prompts.max_len, most=1)
            self._faults.self_test(again, next(iter(computed.failed.values())))
            return True
        due = self._advance(chunks, output, out)
        if exports is not None:
            self._export(due, output, out)
            self._send(out)
        else:
            self._deliver(self._sampler.sample(due, output, out), out)
        return True

    def _repeat(self, out: Outbox) -> bool:
        """Emit restored output, which the client has already, to the next stages; return whether there was any."""
        keys = [key for key in self._over if out.ready(key)]
        for key in keys:
            self._deliver(self._over.pop(key), out)
        return bool(keys)

    def _deliver(self, moved: list[Choice], out: Outbox) -> None:
        """Send the output of choices, and finish requests whose choices have all ended."""
        for choice in moved:
            key = choice.sequence.key
            try:
                if (request := self._requests.get(key)) is not None:
                    emit_outputs(request, choice, self._adapter, self._runner.cache, out)
                    if choice.closed:
                        self._scheduler.remove(choice.sequence)
            except Exception as error:
                self._prompts.fail(key, error, out)
        # Only now: several choices of one request may have ended in this step.
        for key in dict.fromkeys(choice.sequence.key for choice in moved):
            if (request := self._requests.get(key)) is not None and request.done:
                self._prompts.finish(key, request.usage, out)

    def _advance(self, chunks: list[ScheduledChunk], output: StepOutput, out: Outbox) -> list[tuple[Sequence, int]]:
        """Record the computed tokens, and return the sequences that need a token, with the rows of their logits."""
        due: list[tuple[Sequence, int]] = []
        row = 0
        for chunk in chunks:
            first, row = row, row + chunk.rows
            request = self._requests.get(chunk.sequence.key)
            if request is None:
                continue  # it failed, in another part of this step
            chunk.sequence.advance(chunk.count, self._pool)
            try:
                if count := len(chunk.logprob_positions):
                    keep_logprobs(request, chunk, output.logits[first : first + count], self._prompts.token_bytes)
            except Exception as error:
                self._prompts.fail(request.work.key, error, out)
                continue
            if chunk.sample:
                due.append((chunk.sequence, row - 1))
        return [it for it in due if it[0].key in self._requests]  # one may have failed by another of its choices

    def _discard_kv(self, key: int, error: Exception, out: Outbox) -> None:
        """The network raised, or gave numbers that are none. What this request alone wrote to the cache may be as
        bad."""
        for sequence in self._requests[key].sequences:
            self._runner.zero_blocks(self._pool.discard(sequence.blocks))
        self._prompts.fail(key, error, out)

    # ---- halves of a split stage

    def _send(self, out: Outbox) -> bool:
        """Send prompts, or parts of prompts, to the decode engine; return whether any was sent."""
        if self._producer is None or (sent := self._producer.send(out)) is None:
            return False
        through, failed = sent
        for key in through:
            self._prompts.finish(key, Usage(), out)  # the second half tells of the prompt
        for key, error in failed.items():
            self._prompts.fail(key, error, out)
        return True

    def _export(self, due: list[tuple[Sequence, int]], output: StepOutput, out: Outbox) -> None:
        """Hand computed prompts to the exports."""
        assert self._producer is not None
        for sequence, row in due:
            key = sequence.key
            if not output.logits[row].max().isfinite():
                self._discard_kv(key, OutputError("logits are not finite"), out)
                continue
            try:
                self._producer.computed(self._requests[key], output, row, state_of(self._adapter, key))
            except Exception as error:
                self._prompts.fail(key, error, out)

    def _take_over(self, out: Outbox, ready: Callable[[int], bool]) -> bool:
        """Grant room to prompts, and start the prompts that have arrived; return whether there was any."""
        if self._consumer is None:
            return False
        moved = self._consumer.grant(out, ready)
        for request, result in self._consumer.arrived(out.ready):
            moved = request.opened = True
            try:
                self._adapter.import_state(request.work, result.state)
                request.choices.append(self._prompts.choice(request, request.first, self._prompts.limit(request)))
                output = result.output(self._adapter.decoder.device)
            except Exception as error:
                self._prompts.fail(request.work.key, error, out)
                continue
            self._scheduler.adopt(request.first)
            self._deliver(self._sampler.sample([(request.first, 0)], output, out), out)
        return moved

    # ---- the rest

    def counters(self) -> dict[str, float]:
        """Return gauges and counters.

        Gauges are ``requests``, sequences ``running`` and ``waiting``, ``kv_blocks_used`` (without blocks that are only
        kept for reuse), and the gauges of disaggregation. Names of counters end in ``_total``.
        """
        scheduler = self._scheduler
        found = {
            **self._prompts.counters(),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_blocks_used": self._pool.used,
            "preemptions_total": scheduler.preemptions,
            "out_of_memory_total": self._isolated.shortages,
            "prefix_hit_tokens_total": scheduler.prefix_hit_tokens,
        }
        if self._runner.captured is not None:
            found["recorded_steps_total"] = self._runner.captured.steps
        for half in (self._producer, self._consumer):
            found |= {} if half is None else half.counters()
        return found

    def close(self) -> None:
        self._prompts.close()
        self._group.close()
