"""The requests of an engine that reads prompts and writes text: how a prompt comes together, and how a request ends.

:class:`PromptTable` is the part that such engines have in common, whatever computes the tokens between. An engine owns
one and calls it; the table calls the engine at one place only, when a request leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request, overloaded
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Outbox, Work
from omni_actors.worker.engines.autoregressive.adapter import PromptAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.checks import prompt_of, sampling_of
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.detokenize import StopStrings
from omni_actors.worker.engines.autoregressive.request import PromptRequest, choice_of, limit_of, wants_prompt_logprobs
from omni_actors.worker.engines.autoregressive.sampling import resolve, validate
from omni_actors.worker.engines.autoregressive.sequence import Sequence
from omni_actors.worker.isolation import Faults
from omni_actors.worker.returned import counters_of

log = logging.getLogger(__name__)


class PromptOptions(Protocol):
    """The options that every engine with a :class:`PromptTable` has."""

    @property
    def max_requests(self) -> int:
        """The most requests that the engine holds; one more is refused with 429."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of an answer whose request names no limit; ``None`` for as many as the context leaves."""
        ...

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Defaults for the fields of :class:`~omni_actors.protocol.params.Sampling`."""
        ...


class PromptTable:
    """The requests of one engine by key, with the :class:`PromptAdapter` that reads their prompts.

    ``forget`` is called once for each request that leaves, whatever the reason, when it is out of the table and its
    adapter's state is closed. ``constrained`` says whether the engine can keep an answer to a grammar, ``prompt_only``
    whether the tokens behind a prompt are sampled elsewhere. ``totals`` names the engine's own counters.

    ``adapter`` and ``max_len`` (tokens of prompt and answer together) are set by :meth:`attach`, before the first
    request.
    """

    adapter: PromptAdapter
    max_len: int

    def __init__(
        self,
        hello: Hello,
        options: PromptOptions,
        forget: Callable[[PromptRequest], None],
        *,
        totals: tuple[str, ...] = (),
        constrained: bool = False,
        prompt_only: bool = False,
    ) -> None:
        self.requests: dict[int, PromptRequest] = {}
        common = ("steps", "prompt_tokens", "completion_tokens", "resumed_tokens", "finished", "failures", "aborted")
        self.totals = dict.fromkeys((*common, *totals), 0)
        self.faults = Faults(hello)
        self._stage = hello.stage
        self._options = options
        self._forget = forget
        self._constrained = constrained
        self._prompt_only = prompt_only
        self._order = 0  # of arrival, one number for each choice

    def attach(self, adapter: PromptAdapter, max_len: int) -> None:
        """Read prompts by this adapter, which is loaded, into at most ``max_len`` tokens with the answer."""
        self.adapter = adapter
        self.max_len = max_len

    # ---- a request's prompt

    def admit(self, work: Work) -> PromptRequest:
        """Take a request into the table, without its prompt (:meth:`open`).

        Raises :class:`OmniError` when the table is full (429) or the sampling parameters are invalid (400).
        """
        if len(self.requests) >= self._options.max_requests:
            raise overloaded(f"Stage '{self._stage}' holds {self._options.max_requests} requests already.")
        adapter = self.adapter
        sampling = sampling_of(adapter, adapter.sampling(work))
        validate(sampling, adapter.vocab_size, constrained=self._constrained)
        defaults = self._options.sampling, adapter.sampling_defaults
        params = resolve(sampling, *defaults, request_id=work.request_id)
        first = Sequence(work.key, 0, self._order, [], 0, sealed=False)
        self._order += sampling.n
        request = PromptRequest(work, sampling, params, StopStrings(sampling.stop), first, set(work.ports))
        request.wants_prompt_logprobs = wants_prompt_logprobs(work, sampling)
        self.requests[work.key] = request
        return request

    def open(self, request: PromptRequest) -> PromptInput:
        """Tell the adapter of a request that was just admitted; return the prompt as far as it is known."""
        return prompt_of(self.adapter, "open", self.adapter.open(request.work))

    def feed(self, request: PromptRequest, port: str, payload: Payload | None, end: bool) -> PromptInput:
        """Give the adapter input on a port; return what the input adds to the prompt."""
        if end:
            request.open_ports.discard(port)
        return prompt_of(self.adapter, "feed", self.adapter.feed(request.work.key, port, payload, end))

    def extend(self, request: PromptRequest, prompt: PromptInput) -> int | None:
        """Add to a request's prompt, and check its length as soon as it is known.

        Returns, when the prompt is whole by this, how many tokens each choice of the answer may have; else ``None``.
        Raises :class:`OmniError` (400) for a prompt that is empty or too long.
        """
        first = request.first
        if first.sealed:
            return None
        if prompt.tokens and not first.tokens:
            first.root, first.reuse = prompt.root, prompt.reuse
            request.continued, request.final, request.most = prompt.continued, prompt.final, prompt.max_tokens
        first.tokens += prompt.tokens
        first.prompt_len = len(first.tokens)
        limit = self.limit(request)
        if not prompt.complete and request.open_ports:
            return None
        if not first.tokens:
            raise invalid_request("The prompt is empty.", param=request.prompt_param)
        first.sealed = True
        self.totals["prompt_tokens"] += first.prompt_len
        return limit

    def limit(self, request: PromptRequest) -> int:
        """The most tokens that a choice of the request may have. Raises (400) when the context is too short."""
        return limit_of(request, self.max_len, self._options.max_tokens, prompt_only=self._prompt_only)

    def choice(self, request: PromptRequest, sequence: Sequence, limit: int) -> Choice:
        """Make a choice of a request whose prompt is whole: it follows ``sequence`` for at most ``limit`` tokens."""
        return choice_of(request, sequence, limit, self.adapter, self._stage)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token's text; empty where tokens are no text."""
        vocabulary = self.adapter.vocabulary
        return b"" if vocabulary is None else vocabulary.token_bytes(token_id)

    # ---- its end

    def abort(self, key: int) -> None:
        """Remove a request that nobody wants any more. Unknown keys are ignored."""
        if key in self.requests:
            self.totals["aborted"] += 1
            self.remove(key)

    def finish(self, key: int, usage: Usage, out: Outbox) -> None:
        """End a request with success."""
        out.finish(key, usage)
        self.totals["finished"] += 1
        self.remove(key)

    def fail(self, key: int, error: Exception, out: Outbox) -> None:
        """End this request alone with ``error``. Raises the error again if it says that the device is lost."""
        info = self.faults.explain(error, self.requests[key].work.request_id)
        self.totals["failures"] += 1
        self.remove(key)
        out.fail(key, info)

    def remove(self, key: int) -> None:
        """Take a request out of the table, whatever the reason, and let adapter and engine forget it."""
        request = self.requests.pop(key)
        if request.opened:
            try:
                self.adapter.close(key)
            except Exception:
                log.exception("the request's state did not close", extra={"request": request.work.request_id})
        self._forget(request)

    # ---- the rest

    def counters(self) -> dict[str, float]:
        """``requests`` held, totals (their names end in ``_total``; they only grow), and the family's own counters."""
        return {
            "requests": len(self.requests),
            **{f"{name}_total": count for name, count in self.totals.items()},
            **counters_of(self.adapter, self.adapter.counters()),
        }

    def close(self) -> None:
        """Remove every request."""
        for key in list(self.requests):
            self.remove(key)
