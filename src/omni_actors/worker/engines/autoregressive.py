"""The autoregressive engine: continuous batching over a paged KV cache.

One step computes some tokens of every runnable sequence in one pass of the network (:mod:`ar_scheduler` says which),
samples one token for each sequence that is complete so far, and hands out what is certain of its text.
"""

from __future__ import annotations

import logging
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request, overloaded, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import TokenLogprob, Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.ar_options import EngineOptions
from omni_actors.worker.engines.ar_scheduler import Scheduler
from omni_actors.worker.engines.choice import Choice
from omni_actors.worker.engines.decoder import AutoregressiveAdapter, Drawn, PromptInput, Release, StepOutput
from omni_actors.worker.engines.detokenize import StopStrings, TextStream
from omni_actors.worker.engines.model_runner import ModelRunner
from omni_actors.worker.engines.paged_cache import BlockPool
from omni_actors.worker.engines.sampling import Choosing, Row, resolve, sample, token_logprobs, validate
from omni_actors.worker.engines.sequence import Chunk, Sequence

log = logging.getLogger(__name__)


CONTEXT_TOKENS = 8
"""So many of the prompt's last tokens say how the first token of its continuation is decoded."""


@dataclass(slots=True)
class _Request:
    work: Work
    sampling: Sampling
    choosing: Choosing
    stops: StopStrings
    first: Sequence
    open_ports: set[str]
    continued: bool = False
    final: bool = False
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.choices) == self.sampling.n and all(c.finish_reason for c in self.choices)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.first.prompt_len,
            cached_tokens=self.first.cached or 0,
            completion_tokens=sum(c.completion_tokens for c in self.choices),
        )


class AutoregressiveEngine(Engine):
    """Drives one :class:`AutoregressiveAdapter`, named by ``hello.adapter``. Options: :class:`EngineOptions`."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = EngineOptions.of(hello)
        self._requests: dict[int, _Request] = {}
        self._order = 0  # of arrival, one number for each choice
        self._totals = dict.fromkeys(
            ("steps", "prompt_tokens", "computed_tokens", "completion_tokens", "finished", "failures", "aborted"), 0
        )
        self._adapter: AutoregressiveAdapter
        self._runner: ModelRunner
        self._pool: BlockPool
        self._scheduler: Scheduler
        self._max_len: int

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        adapter: AutoregressiveAdapter = pkgutil.resolve_name(self.hello.adapter)(self.hello)
        info = adapter.load(progress)
        self.attach(adapter)
        progress("warming up", None)
        self._warm_up()
        return {
            "max_model_len": self._max_len,
            "kv_blocks": self._pool.total,
            "block_size": self._pool.block_size,
            **info,
        }

    def attach(self, adapter: AutoregressiveAdapter) -> None:
        """Drive this adapter, which is loaded already, with a cache of its own."""
        options = self.options
        blocks = options.blocks(adapter.decoder.kv_shape.token_bytes)
        self._adapter = adapter
        self._pool = BlockPool(blocks, options.block_size, options.prefix_cache)
        self._runner = ModelRunner(adapter.decoder, blocks, options.block_size)
        self._scheduler = Scheduler(self._pool, options.max_batch, options.step_tokens)
        # A sequence alone must always fit: that is what makes preemption end.
        self._max_len = min(adapter.max_model_len, blocks * options.block_size)
        if self._max_len < adapter.max_model_len:
            log.warning("the KV cache holds %d tokens: the context is cut to that", self._max_len)

    def _warm_up(self) -> None:
        """Run a prompt and a decode, so that the first request does not pay for what is made on first use."""
        count = min(16, self._max_len - 1)
        sequence = Sequence(-1, 0, 0, [0] * count, count, blocks=self._pool.allocate(self._pool.blocks_for(count + 1)))
        self._runner.run([Chunk(sequence, 0, count, True)])
        sequence.tokens.append(0)
        self._runner.run([Chunk(sequence, count, 1, True)])
        self._runner.cache.scrub(sequence.blocks)
        sequence.release(self._pool)

    # ---- requests

    def admit(self, work: Work) -> None:
        if len(self._requests) >= self.options.max_requests:
            raise overloaded(f"Stage '{self.hello.stage}' holds {self.options.max_requests} requests already.")
        adapter = self._adapter
        sampling = adapter.sampling(work)
        validate(sampling, adapter.decoder.vocab_size)
        choosing = resolve(sampling, self.options.sampling, adapter.sampling_defaults)
        scored = sampling.echo and sampling.logprobs is not None
        prompt = adapter.open(work)
        try:
            first = Sequence(work.key, 0, self._order, [], 0, sealed=False, reuse=not scored, score=scored)
            request = _Request(work, sampling, choosing, StopStrings(sampling.stop), first, set(work.ports))
            self._extend(request, prompt)
        except BaseException:
            adapter.close(work.key)
            raise
        self._order += sampling.n
        self._requests[work.key] = request
        self._scheduler.add(first)

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests[key]
        if end:
            request.open_ports.discard(port)
        self._extend(request, self._adapter.feed(key, port, payload, end))
        return True

    def abort(self, key: int) -> None:
        if key in self._requests:
            self._totals["aborted"] += 1
            self._remove(key)

    def _extend(self, request: _Request, prompt: PromptInput) -> None:
        """More of the prompt is there. It is checked as soon as it is known, and computed as soon as it can be."""
        first = request.first
        if first.sealed:
            return
        if prompt.tokens and not first.tokens:
            first.root, first.reuse = prompt.root, first.reuse and prompt.reuse
            request.continued, request.final = prompt.continued, prompt.final
        first.tokens += prompt.tokens
        first.prompt_len = len(first.tokens)
        limit = self._limit(request)
        if prompt.complete or not request.open_ports:
            if not first.tokens:
                raise invalid_request("The prompt is empty.", param=_prompt_param(request.work))
            first.sealed = True
            self._totals["prompt_tokens"] += first.prompt_len
            request.choices.append(self._choice(request, first, limit))

    def _limit(self, request: _Request) -> int:
        """Most tokens that a choice may have. Raises (400) when the context is too short for what is asked."""
        length, most = request.first.prompt_len, request.sampling.max_tokens
        room = self._max_len - length
        if request.final and room >= 0:
            return 0
        if room < (1 if most is None else most):
            wanted = f"{length} tokens" if most is None else f"{length} tokens and {most} more are asked for"
            raise invalid_request(
                f"This model's maximum context length is {self._max_len} tokens; the prompt has {wanted}.",
                param=_prompt_param(request.work),
                code="context_length_exceeded",
            )
        if most is not None:
            return most
        return room if self.options.max_tokens is None else min(room, self.options.max_tokens)

    def _choice(self, request: _Request, sequence: Sequence, limit: int) -> Choice:
        sampling, vocabulary = request.sampling, self._adapter.vocabulary
        prompt = sequence.tokens[: sequence.prompt_len]
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._adapter.eos)
        penalized = prompt if self._adapter.penalize_prompt else ()
        row = Row(request.choosing, stage=self.hello.stage, choice=sequence.index, prompt=penalized, stop_ids=ends)
        if vocabulary is None:
            return Choice(sequence, row, None, sampling, ends, limit)
        stream = TextStream(
            vocabulary,
            stops=request.stops,
            include_stop=sampling.include_stop_str_in_output,
            skip_special_tokens=sampling.skip_special_tokens,
            min_tokens=sampling.min_tokens,
            context=prompt[-CONTEXT_TOKENS:] if request.continued else (),
        )
        return Choice(sequence, row, stream, sampling, ends, limit)

    def _remove(self, key: int) -> None:
        request = self._requests.pop(key)
        self._adapter.close(key)
        for sequence in [request.first, *(c.sequence for c in request.choices[1:])]:
            self._scheduler.remove(sequence)

    # ---- one step

    @property
    def runnable(self) -> bool:
        return self._scheduler.runnable

    def step(self, out: Outbox) -> bool:
        adapter = self._adapter
        chunks = self._scheduler.schedule(lambda key: out.ready(key) and adapter.ready(key))
        if not chunks:
            return False
        output = self._runner.run(chunks)
        self._totals["steps"] += 1
        self._totals["computed_tokens"] += sum(c.count for c in chunks)
        moved = self._sample(chunks, output, out)
        for choice in moved:
            self._hand_out(choice, out)
        # Only now: several choices of one request may have ended in this step.
        for key in dict.fromkeys(choice.sequence.key for choice in moved):
            if self._requests[key].done:
                out.finish(key, self._requests[key].usage)
                self._totals["finished"] += 1
                self._remove(key)
        return True

    @torch.inference_mode()
    def _sample(self, chunks: list[Chunk], output: StepOutput, out: Outbox) -> list[Choice]:
        """Advance the sequences, and choose a token wherever one is due: the choices that moved."""
        logits = output.logits
        picks: list[tuple[Choice, int]] = []
        ended: list[Choice] = []
        row = 0
        for chunk in chunks:
            sequence = chunk.sequence
            sequence.advance(chunk.count, self._pool)
            request = self._requests[sequence.key]
            if chunk.scored:
                self._score(request, chunk, logits[row : row + chunk.scored])
            row += chunk.rows
            if chunk.sample:
                choices = self._due(request, sequence)
                if choices[0].limit:
                    picks += [(c, row - 1) for c in choices]
                else:
                    ended += choices
        for choice in ended:
            choice.end("length")
        if not picks:
            return ended
        rows = [r for _, r in picks]
        chosen = logits if rows == list(range(len(logits))) else logits[rows]
        sampled = sample(chosen, [c.row for c, _ in picks], self._token_bytes)
        broken = {picks[i][0].sequence.key for i in sampled.broken}
        for key in broken:
            self._fail(key, out)
        moved: list[Choice] = []
        drawn: list[Drawn] = []
        for (choice, row), token_id, logprob in zip(picks, sampled.token_ids, sampled.logprobs, strict=True):
            key, index = choice.sequence.key, choice.sequence.index
            if key not in broken:
                position = choice.completion_tokens
                choice.push(token_id, logprob)
                moved.append(choice)
                ends = token_id in self._adapter.eos
                drawn.append(Drawn(key, index, position, token_id, row, choice.finish_reason is not None, ends))
        self._totals["completion_tokens"] += len(moved)
        self._adapter.sampled(drawn, output)
        return ended + moved

    def _due(self, request: _Request, sequence: Sequence) -> list[Choice]:
        """The choices that a sequence's logits are for: its own, and after the prompt every other one, forked."""
        choice = request.choices[sequence.index]
        if choice.completion_tokens or sequence.index:
            return [choice]
        for index in range(1, request.sampling.n):
            child = Sequence(
                sequence.key,
                index,
                sequence.order + index,
                list(sequence.tokens),
                sequence.prompt_len,
                root=sequence.root,
                reuse=sequence.reuse,
            )
            copy = self._scheduler.fork(sequence, child)
            if copy is not None:
                self._runner.cache.copy(sequence.blocks[-1], copy)
            request.choices.append(self._choice(request, child, choice.limit))
        if request.sampling.echo and self._adapter.vocabulary is not None:
            text = self._adapter.vocabulary.tokenizer.decode(
                sequence.tokens, skip_special_tokens=request.sampling.skip_special_tokens
            )
            for each in request.choices:
                each.echo(text, request.prompt_logprobs)
        return list(request.choices)

    def _score(self, request: _Request, chunk: Chunk, logits: torch.Tensor) -> None:
        """The prompt's own log-probabilities; its first token has none (NaN)."""
        known, token_bytes = request.prompt_logprobs, self._token_bytes
        tokens = chunk.sequence.tokens
        if not known:
            known.append(TokenLogprob(tokens[0], token_bytes(tokens[0]), math.nan))
        after = range(chunk.start + 1, chunk.start + 1 + chunk.scored)
        counts = [request.sampling.logprobs or 0] * chunk.scored
        scores = token_logprobs(logits, [tokens[i] for i in after], counts, token_bytes)
        known += scores[len(known) - after.start :]  # one that was preempted is scored again

    def _hand_out(self, choice: Choice, out: Outbox) -> None:
        key = choice.sequence.key
        request = self._requests[key]
        delta = choice.take(key)
        if request.work.routed and choice.sequence.index == 0:
            payload = self._adapter.output(self._release(choice, delta.text))
            if payload is not None:
                out.emit(key, payload)
        if choice.finish_reason is not None:
            self._scheduler.remove(choice.sequence)
        if request.work.visible and self._adapter.vocabulary is not None:
            out.text(delta)

    def _release(self, choice: Choice, text: str) -> Release:
        """What the next stage may have of this step."""
        sequence, start, states = choice.sequence, choice.handed_on, None
        if self._adapter.decoder.kv_shape.side:
            choice.handed_on = max(start, min(sequence.computed, choice.certain))
            if count := choice.handed_on - start:
                states = self._runner.cache.side_rows(sequence.blocks, start, count)
        tokens = sequence.tokens[start : choice.handed_on]
        over = choice.finish_reason is not None
        return Release(sequence.key, text, start, tokens, sequence.prompt_len, states, over)

    def _token_bytes(self, token_id: int) -> bytes:
        vocabulary = self._adapter.vocabulary
        return b"" if vocabulary is None else vocabulary.token_bytes(token_id)

    def _fail(self, key: int, out: Outbox) -> None:
        """The network gave numbers that are none. What this request alone wrote to the cache may be as bad."""
        request = self._requests[key]
        log.error("logits are not finite", extra={"request": request.work.request_id})
        for choice in request.choices:
            self._runner.cache.scrub(self._pool.condemn(choice.sequence.blocks))
        self._totals["failures"] += 1
        self._remove(key)
        out.fail(key, stage_failed(self.hello.stage, "the model's output is not finite").info)

    # ---- the rest

    def counters(self) -> dict[str, float]:
        """Gauges: ``requests`` held, sequences ``running`` and ``waiting``, ``kv_blocks_used`` (blocks that are only
        kept for reuse are not). Everything that ends in ``_total`` only grows."""
        scheduler = self._scheduler
        return {
            "requests": len(self._requests),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "kv_blocks_used": self._pool.used,
            "preemptions_total": scheduler.preemptions,
            "prefix_hit_tokens_total": scheduler.prefix_hit_tokens,
            **{f"{name}_total": count for name, count in self._totals.items()},
        }

    def close(self) -> None:
        for key in list(self._requests):
            self._remove(key)


def _prompt_param(work: Work) -> str:
    """The field of the client's request that the prompt comes from."""
    prompt = work.params.get("prompt")
    return "prompt" if isinstance(prompt, Prompt) and prompt.messages is None else "messages"
