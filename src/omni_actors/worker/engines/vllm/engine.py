"""vLLM as the engine of a stage that reads prompts and writes text.

vLLM computes tokens, with its own scheduler, paged cache and kernels. Everything else is this project's, as in every
other engine, so that clients see no difference between engines: the family's adapter makes prompts and defaults,
the choice makes text and finds stop strings, and a request continues after a death behind its reported tokens. Each
choice of a request is one request of vLLM; the common prompt of the choices is computed once, through the prefix cache.

vLLM's core runs in the worker's process and is stepped by the worker's one thread. vLLM also computes requests whose
next stage has given no credit: the output of such a request waits here, at most the tokens of one answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request, not_resumable
from omni_actors.protocol.frames import Hello, Query
from omni_actors.protocol.request import TokenLogprob
from omni_actors.worker.checks import OutputError, WarmUpError
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.autoregressive.adapter import PromptAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.checks import load_facts
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.output import emit_outputs
from omni_actors.worker.engines.autoregressive.prompts import PromptTable
from omni_actors.worker.engines.autoregressive.request import PromptRequest, prompt_text
from omni_actors.worker.engines.vllm.core import Core, Media
from omni_actors.worker.engines.vllm.options import VllmOptions
from omni_actors.worker.engines.vllm.params import (
    counts_tokens,
    prompt_scores,
    sampling_params,
    seed_of,
    token_logprob,
)
from omni_actors.worker.named import class_named
from vllm import SamplingParams

log = logging.getLogger(__name__)


class VllmEngine(Engine):
    """The vLLM engine, for the :class:`PromptAdapter` named by ``hello.adapter``. Options: :class:`VllmOptions`."""

    commands = frozenset({"sleep", "wake"})

    _adapter: PromptAdapter

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: VllmOptions = VllmOptions.of(hello)
        self._prompts = PromptTable(hello, self.options, self._forget, totals=("prefix_hit_tokens",), constrained=True)
        self._requests, self._totals = self._prompts.requests, self._prompts.totals
        self._computed: dict[str, tuple[PromptRequest, Choice]] = {}
        """The requests in vLLM, by vLLM's name."""
        self._media: dict[int, Media] = {}
        """The processed media of requests, by key."""
        self._begun: set[str] = set()
        self._moved: dict[tuple[int, int], Choice] = {}
        """The choices with output to send, by request and index."""
        self._core: Core

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self._adapter = class_named(self.hello.adapter, PromptAdapter, "adapter")(self.hello)
        info = load_facts(self._adapter, self._adapter.load(progress))
        progress("loading the model into vLLM", None)
        self._core = Core(self.hello, self.options)
        self._prompts.attach(self._adapter, min(self._adapter.max_model_len, self._core.max_model_len))
        progress("warming up", None)
        self._warm_up()
        return {
            "max_model_len": self._prompts.max_len,
            "vocab_size": self._adapter.vocab_size,
            "kv_blocks": self._core.kv_blocks,
            "block_size": self._core.block_size,
            "vllm": self._core.version,
            "loras": list(self.options.loras),
            **info,
        }

    def _warm_up(self) -> None:
        """Compute a prompt and a decode step, so that everything made on first use is made now."""
        count = min(16, self._prompts.max_len - 2)
        if count > 0:
            self._core.add(
                "warm-up",
                [0] * count,
                SamplingParams(max_tokens=2, ignore_eos=True, temperature=0, detokenize=False, logprobs=0),
            )
            while self._core.busy:
                for output in self._core.step():
                    made = output.outputs[0]
                    for token, scores in zip(made.token_ids, made.logprobs or (), strict=False):
                        if not math.isfinite(scores[token].logprob):
                            raise WarmUpError("logits")

    # ---- requests

    def admit(self, work: Work) -> None:
        request = self._prompts.admit(work)
        try:
            self._core.wake()  # a new request wakes a sleeping engine
            self._extend(request, self._prompts.open(request))
        except BaseException:
            self._prompts.remove(work.key)
            raise

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests[key]
        self._extend(request, self._prompts.feed(request, port, payload, end))
        return True

    def abort(self, key: int) -> None:
        self._prompts.abort(key)

    def _extend(self, request: PromptRequest, prompt: PromptInput) -> None:
        """Extend the prompt; when the prompt is whole, let vLLM compute it."""
        if prompt.media and not request.first.sealed:
            assert not request.first.tokens, "media, and the prompt is not whole"
            tokens, self._media[request.work.key] = self._core.look(prompt.tokens, prompt.media)
            prompt = replace(prompt, tokens=tokens)
        limit = self._prompts.extend(request, prompt)
        if limit is not None:
            self._start(request, limit)

    def _start(self, request: PromptRequest, limit: int) -> None:
        """Start the choices of a whole prompt, each behind the tokens of earlier attempts."""
        work, first = request.work, request.first
        for index in range(request.sampling.n):
            sequence = first if index == 0 else first.sibling(index)
            request.choices.append(self._prompts.choice(request, sequence, limit))
        if work.prefix is not None:
            self._adapter.restore(work.key, work.prefix)
        for choice in request.choices:
            tokens = request.reported(choice.sequence.index)
            if tokens:
                if request.sampling.echo:
                    choice.echo(prompt_text(request, self._adapter), [])
                choice.resume(tokens)
                self._totals["resumed_tokens"] += len(tokens)
            elif not limit:
                if work.prefix is not None:
                    choice.end_emitted = True
                if choice.end_emitted or not request.wants_prompt_logprobs:
                    self._echo(request, choice, [])
                    choice.end("length")
            if choice.finish_reason is not None:
                self._moved[work.key, choice.sequence.index] = choice
            else:
                self._compute(request, choice)

    def _compute(self, request: PromptRequest, choice: Choice) -> None:
        name = f"{request.work.key}.{choice.sequence.index}"
        if choice.completion_tokens and counts_tokens(request) and not self._core.resumes_penalties:
            raise not_resumable(self.hello.stage)
        scored = bool(choice.sequence.logprob_positions) or (
            request.wants_prompt_logprobs and not choice.completion_tokens
        )
        if scored and self.options.loras:
            # vLLM (0.32) raises then, in a step with another request: it takes the prompt's rows for sampled rows.
            if choice.completion_tokens:
                raise not_resumable(self.hello.stage)
            raise invalid_request(
                "Log-probabilities of the prompt are not supported together with LoRA adapters.", "logprobs"
            )
        params = sampling_params(request, choice, self._adapter.eos, scored)
        salt = request.first.root.hex() or None
        self._core.add(
            name,
            choice.sequence.tokens.copy(),
            params,
            salt=salt,
            lora=request.sampling.lora,
            told=choice.completion_tokens,
            media=self._media.get(request.work.key),
        )
        self._computed[name] = (request, choice)

    def _forget(self, request: PromptRequest) -> None:
        """Forget a request that has left the :class:`PromptTable`."""
        key = request.work.key
        self._media.pop(key, None)
        for index in range(len(request.choices)):
            self._moved.pop((key, index), None)
            self._drop(f"{key}.{index}")

    def _drop(self, name: str) -> None:
        """Stop computing a choice in vLLM."""
        self._begun.discard(name)
        if self._computed.pop(name, None) is not None:
            self._core.abort(name)

    # ---- one step

    @property
    def runnable(self) -> bool:
        return bool(self._core.busy or self._moved)

    def step(self, out: Outbox) -> bool:
        ran = False
        if self._core.busy:
            for name, (_, choice) in self._computed.items():
                if name in self._begun and not choice.sampling_state.params.greedy:
                    self._core.reseed(name, seed_of(choice))
            for output in self._core.step():
                if (found := self._computed.get(output.request_id)) is None:
                    continue
                try:
                    self._take(output, *found)
                except Exception as error:
                    self._prompts.fail(found[0].work.key, error, out)
            self._totals["steps"] += 1
            ran = True
        return self._deliver(out) or ran

    def _take(self, output: Any, request: PromptRequest, choice: Choice) -> None:
        """Take vLLM's new output of one choice."""
        name, made = output.request_id, output.outputs[0]
        if name not in self._begun:
            self._begun.add(name)
            self._begin(output, request, choice)
        count, token_bytes = request.sampling.logprobs, self._prompts.token_bytes
        for place, token_id in enumerate(made.token_ids):
            if choice.finish_reason is not None or not choice.limit:
                break
            logprob = None
            if count is not None:
                logprob = token_logprob(token_id, made.logprobs[place], count, token_bytes)
                if not math.isfinite(logprob.logprob):
                    raise OutputError("logits are not finite")
            choice.push(token_id, logprob)
            self._totals["completion_tokens"] += 1
        if output.finished:
            del self._computed[name]
            self._begun.discard(name)
            if made.finish_reason not in ("stop", "length"):
                raise _failed(output, made.finish_reason)
            choice.end(made.finish_reason)
        elif choice.finish_reason is not None:
            self._drop(name)
        self._moved[request.work.key, choice.sequence.index] = choice

    def _begin(self, output: Any, request: PromptRequest, choice: Choice) -> None:
        """Take vLLM's first output of a choice: the cached tokens of the prompt, and the prompt's log-probabilities."""
        first, sequence = request.first, choice.sequence
        if first.cached is None:
            first.cached = min(output.num_cached_tokens or 0, first.prompt_len)
            self._totals["prefix_hit_tokens"] += first.cached
        count, entries = request.sampling.logprobs or 0, output.prompt_logprobs
        if sequence.logprob_positions:
            scores = prompt_scores(
                sequence.tokens, sequence.logprob_positions, entries, count, self._prompts.token_bytes
            )
            choice.add_logprobs(sequence.logprob_positions.start, scores)
        if choice.completion_tokens:
            return
        known: list[TokenLogprob] = []
        if request.wants_prompt_logprobs:
            tokens = sequence.tokens
            known = [TokenLogprob(tokens[0], self._prompts.token_bytes(tokens[0]), math.nan)]
            known += prompt_scores(tokens, range(1, first.prompt_len), entries, count, self._prompts.token_bytes)
        self._echo(request, choice, known)

    def _echo(self, request: PromptRequest, choice: Choice, scores: list[TokenLogprob]) -> None:
        if request.sampling.echo and not choice.end_emitted:
            choice.echo(prompt_text(request, self._adapter), scores)

    def _deliver(self, out: Outbox) -> bool:
        """Send the output of the choices, as far as there is credit, and finish requests with all choices ended.

        Returns:
            Whether anything was sent.
        """
        keys = dict.fromkeys(key for key, _ in self._moved if out.ready(key))
        for key in keys:
            request = self._requests[key]
            try:
                for choice in request.choices:
                    if self._moved.pop((key, choice.sequence.index), None) is not None:
                        emit_outputs(request, choice, self._adapter, None, out)
            except Exception as error:
                self._prompts.fail(key, error, out)
                continue
            if request.done:
                self._prompts.finish(key, request.usage, out)
        return bool(keys)

    # ---- the rest

    def query(self, query: Query, out: Outbox) -> None:
        """Answer ``sleep`` (``level``: 0 pauses, 1 also frees the device's memory), ``wake``, and ``kv_blocks`` (the
        hashes of the cached blocks, with the option ``kv_events``)."""
        core = self._core
        if query.what == "sleep":
            core.sleep(query.args.get("level", 0))
            out.reply(query.id, {"asleep": True})
        elif query.what == "wake":
            core.wake()
            out.reply(query.id, {"asleep": False})
        elif query.what == "kv_blocks" and core.cached_blocks is not None:
            out.reply(query.id, {"block_size": core.block_size, "hashes": core.cached_blocks.hashes()})
        else:
            super().query(query, out)

    def counters(self) -> dict[str, float]:
        """Return gauges and counters.

        Gauges are ``requests``, the choices ``running`` and ``waiting``, and ``kv_blocks_used`` (without blocks that
        are only kept for reuse). Names of counters end in ``_total``.
        """
        core = self._core
        return {
            **self._prompts.counters(),
            "running": core.running,
            "waiting": core.waiting,
            "kv_blocks_used": core.kv_blocks_used,
            **({} if core.cached_blocks is None else core.cached_blocks.counters()),
        }

    def close(self) -> None:
        self._prompts.close()
        self._core.close()


def _failed(output: Any, reason: str) -> OmniError:
    """Return the error for a request that vLLM itself has failed."""
    error = getattr(output, "error", None)
    message = error.message if error is not None else f"vLLM ended it: {reason}"
    return OmniError(ErrorInfo(message=message, code="engine_error", status=500))
