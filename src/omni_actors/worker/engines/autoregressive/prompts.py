"""An engine of a stage that reads prompts and writes text, whatever computes the tokens between: how a request's prompt
comes together from its admission and its ports, and how a request ends."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request, overloaded
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.autoregressive.adapter import PromptAdapter, PromptInput
from omni_actors.worker.engines.autoregressive.checks import prompt_of, sampling_of
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.detokenize import StopStrings
from omni_actors.worker.engines.autoregressive.request import Request, choice_of, limit_of, scores_prompt
from omni_actors.worker.engines.autoregressive.sampling import resolve, validate
from omni_actors.worker.engines.autoregressive.sequence import Sequence
from omni_actors.worker.isolation import Faults
from omni_actors.worker.returned import counters_of

log = logging.getLogger(__name__)


class PromptOptions(Protocol):
    """What every such engine's options say."""

    @property
    def max_requests(self) -> int:
        """Most requests that it holds."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Most tokens of an answer whose request names no limit; ``None``: what the context leaves."""
        ...

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Defaults for the fields of :class:`~omni_actors.protocol.params.Sampling`."""
        ...


class PromptEngine(Engine):
    """Drives one :class:`PromptAdapter`. Subclasses set ``options``, and ``_adapter`` and ``_max_len`` (tokens of
    prompt and answer together) when they load; they say what happens when a prompt is whole (:meth:`_start`), and what
    else there is to forget of a request (:meth:`_remove`)."""

    constrained: ClassVar[bool] = False
    """Whether it can keep an answer to a grammar."""
    totals: ClassVar[tuple[str, ...]] = ()
    """Its own counters beside those of every such engine."""

    options: PromptOptions
    _adapter: PromptAdapter
    _max_len: int

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._requests: dict[int, Request] = {}
        self._order = 0  # of arrival, one number for each choice
        self._prompt_only = False
        """Whether tokens are sampled elsewhere."""
        common = ("steps", "prompt_tokens", "completion_tokens", "resumed_tokens", "finished", "failures", "aborted")
        self._totals = dict.fromkeys((*common, *self.totals), 0)
        self._faults = Faults(hello)

    # ---- a request's prompt

    def admit(self, work: Work) -> None:
        if len(self._requests) >= self.options.max_requests:
            raise overloaded(f"Stage '{self.hello.stage}' holds {self.options.max_requests} requests already.")
        adapter = self._adapter
        sampling = sampling_of(adapter, adapter.sampling(work))
        validate(sampling, adapter.vocab_size, constrained=self.constrained)
        defaults = self.options.sampling, adapter.sampling_defaults
        choosing = resolve(sampling, *defaults, request_id=work.request_id)
        first = Sequence(work.key, 0, self._order, [], 0, sealed=False)
        request = Request(work, sampling, choosing, StopStrings(sampling.stop), first, set(work.ports))
        request.scored = scores_prompt(work, sampling)
        self._requests[work.key] = request
        try:
            self._open(request)
        except BaseException:
            self._remove(work.key)
            raise
        self._order += sampling.n

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        request = self._requests[key]
        if end:
            request.open_ports.discard(port)
        self._extend(request, prompt_of(self._adapter, "feed", self._adapter.feed(key, port, payload, end)))
        return True

    def _open(self, request: Request) -> None:
        """A request that was just admitted: what is there of its prompt."""
        self._extend(request, prompt_of(self._adapter, "open", self._adapter.open(request.work)))

    def _extend(self, request: Request, prompt: PromptInput) -> None:
        """More of the prompt is there. It is checked as soon as it is known; when it is whole, the answer begins."""
        first = request.first
        if first.sealed:
            return
        if prompt.tokens and not first.tokens:
            first.root, first.reuse = prompt.root, prompt.reuse
            request.continued, request.final, request.most = prompt.continued, prompt.final, prompt.max_tokens
        first.tokens += prompt.tokens
        first.prompt_len = len(first.tokens)
        limit = self._limit(request)
        if prompt.complete or not request.open_ports:
            if not first.tokens:
                raise invalid_request("The prompt is empty.", param=request.prompt_param)
            first.sealed = True
            self._totals["prompt_tokens"] += first.prompt_len
            self._start(request, limit)

    @abstractmethod
    def _start(self, request: Request, limit: int) -> None:
        """The prompt is whole; each choice of the answer may have ``limit`` tokens."""

    def _limit(self, request: Request) -> int:
        return limit_of(request, self._max_len, self.options.max_tokens, prompt_only=self._prompt_only)

    def _choice(self, request: Request, sequence: Sequence, limit: int) -> Choice:
        return choice_of(request, sequence, limit, self._adapter, self.hello.stage)

    def _token_bytes(self, token_id: int) -> bytes:
        vocabulary = self._adapter.vocabulary
        return b"" if vocabulary is None else vocabulary.token_bytes(token_id)

    # ---- its end

    def abort(self, key: int) -> None:
        if key in self._requests:
            self._totals["aborted"] += 1
            self._remove(key)

    def _finish(self, key: int, usage: Usage, out: Outbox) -> None:
        out.finish(key, usage)
        self._totals["finished"] += 1
        self._remove(key)

    def _fail(self, key: int, error: Exception, out: Outbox) -> None:
        """This request alone."""
        info = self._faults.explain(error, self._requests[key].work.request_id)
        self._totals["failures"] += 1
        self._remove(key)
        out.fail(key, info)

    def _remove(self, key: int) -> Request:
        """Forget a request, by whichever way it leaves, and return it."""
        request = self._requests.pop(key)
        if request.opened:
            try:
                self._adapter.close(key)
            except Exception:
                log.exception("the request's state did not close", extra={"request": request.work.request_id})
        return request

    # ---- the rest

    def counters(self) -> dict[str, float]:
        """``requests`` held, what ends in ``_total`` and only grows, and the family's own."""
        return {
            "requests": len(self._requests),
            **{f"{name}_total": count for name, count in self._totals.items()},
            **counters_of(self._adapter, self._adapter.counters()),
        }

    def close(self) -> None:
        for key in list(self._requests):
            self._remove(key)
