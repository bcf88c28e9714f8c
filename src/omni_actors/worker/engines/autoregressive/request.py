"""A request in the autoregressive engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import TokenLogprob, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, PromptAdapter
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.detokenize import StopStrings, TextStream
from omni_actors.worker.engines.autoregressive.sampling import SamplingParams, SamplingState, token_logprobs
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence

CONTEXT_TOKENS = 8
"""The number of last prompt tokens that determine the decoded text of the answer's first token."""


@dataclass(slots=True)
class PromptRequest:
    """A request.

    ``first`` is the sequence of the prompt, and then of the first choice. The ``choices`` exist once the prompt is
    complete. ``opened`` says that the adapter knows the request; ``most`` is the adapter's bound on the answer.
    ``scored`` asks for the prompt's own log-probabilities; ``prompt_usage_emitted`` says that the client knows the
    number of prompt tokens.
    """

    work: Work
    sampling: Sampling
    sampling_params: SamplingParams
    stops: StopStrings
    first: Sequence
    open_ports: set[str]
    continued: bool = False
    final: bool = False
    most: int | None = None
    opened: bool = True
    wants_prompt_logprobs: bool = False
    prompt_usage_emitted: bool = False
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return [self.first, *(choice.sequence for choice in self.choices[1:])]

    @property
    def done(self) -> bool:
        return len(self.choices) == self.sampling.n and all(c.closed for c in self.choices)

    def reported(self, index: int) -> tuple[int, ...]:
        """Return the tokens of a choice that earlier attempts have reported, with which the choice begins."""
        prefix = self.work.prefix
        return prefix.tokens[index] if prefix is not None and index < len(prefix.tokens) else ()

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.first.prompt_len,
            cached_tokens=self.first.cached or 0,
            completion_tokens=sum(c.completion_tokens for c in self.choices),
        )

    @property
    def prompt_param(self) -> str:
        """The field of the client's request with the prompt."""
        prompt = self.work.params.get("prompt")
        if prompt is None and "speech" in self.work.params:
            return "input"
        return "prompt" if isinstance(prompt, Prompt) and prompt.messages is None else "messages"

    @property
    def limit_param(self) -> str:
        """The field named by an error about too many tokens: the limit's for speech, the prompt's for text (as
        OpenAI)."""
        return "max_new_tokens" if self.prompt_param == "input" else self.prompt_param


def limit_of(request: PromptRequest, max_len: int, usual: int | None, *, prompt_only: bool) -> int:
    """Return the most tokens that a choice may have.

    The limit is the request's and the adapter's bound; without both, ``usual``; without that, the rest of ``max_len``.
    ``prompt_only`` says that the tokens are sampled elsewhere. Raises :class:`OmniError` (400) when the context is too
    short.
    """
    length, asked, own = request.first.prompt_len, request.sampling.max_tokens, request.most
    most = own if asked is None else asked if own is None else min(asked, own)
    room = max_len - length
    if room >= 0 and (request.final or prompt_only):
        return 0
    if room < (1 if most is None else most):
        wanted = f"{length} tokens" if most is None else f"{length} tokens and {most} more are asked for"
        raise invalid_request(
            f"This model's maximum context length is {max_len} tokens; the prompt has {wanted}.",
            param=request.prompt_param if room < 1 else request.limit_param,
            code="context_length_exceeded",
        )
    if most is not None:
        return most
    return room if usual is None else min(room, usual)


def choice_of(request: PromptRequest, sequence: Sequence, limit: int, adapter: PromptAdapter, stage: str) -> Choice:
    """Make a choice of a request with a complete prompt, which follows ``sequence`` for at most ``limit`` tokens."""
    sampling, vocabulary = request.sampling, adapter.vocabulary
    prompt = sequence.tokens[: sequence.prompt_len]
    ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else adapter.eos)
    penalized = prompt if adapter.penalize_prompt else ()
    state = SamplingState(request.sampling_params, stage=stage, choice=sequence.index, prompt=penalized, stop_ids=ends)
    if vocabulary is None:
        return Choice(sequence, state, None, sampling, ends, limit)
    stream = TextStream(
        vocabulary,
        stops=request.stops,
        include_stop=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
        min_tokens=sampling.min_tokens,
        context=prompt[-CONTEXT_TOKENS:] if request.continued else (),
    )
    return Choice(sequence, state, stream, sampling, ends, limit)


def resume(request: PromptRequest, adapter: AutoregressiveAdapter) -> tuple[list[Choice], list[Choice]]:
    """Bring the choices of a request with a complete prompt to the end of an earlier attempt.

    Returns the choices that can continue at once (all of them without an earlier attempt), and the choices that had
    ended. Of an ended choice nothing is computed, unless the next stage wants its states.
    """
    prefix = request.work.prefix
    if prefix is None:
        return list(request.choices), []
    adapter.restore(request.work.key, prefix)
    due: list[Choice] = []
    over: list[Choice] = []
    for choice in request.choices:
        tokens = request.reported(choice.sequence.index)
        if tokens:
            if request.sampling.echo:
                choice.echo(prompt_text(request, adapter), [])
            choice.resume(tokens)
        elif not choice.limit:
            choice.end_emitted = True
            choice.end("length")
        hands_states = request.work.routed and choice.sequence.index == 0 and adapter.decoder.kv_shape.side
        if choice.end_emitted and not hands_states:
            over.append(choice)
            continue
        if choice.end_emitted and tokens:
            choice.sequence.tokens.pop()  # a choice's last token is never computed
        if not choice.sequence.pending:
            due.append(choice)
    return due, over


def prompt_text(request: PromptRequest, adapter: PromptAdapter) -> str:
    """Return the text of the prompt for an echo."""
    if adapter.vocabulary is None:
        return ""
    first, skip = request.first, request.sampling.skip_special_tokens
    text: str = adapter.vocabulary.tokenizer.decode(first.tokens[: first.prompt_len], skip_special_tokens=skip)
    return text


def wants_prompt_logprobs(work: Work, sampling: Sampling) -> bool:
    """Whether the prompt's log-probabilities, which leave with a choice's first token, are still to be sent."""
    wanted = sampling.echo and sampling.logprobs is not None
    prefix = work.prefix
    return wanted and (prefix is None or len(prefix.tokens) < sampling.n or not all(prefix.tokens))


def keep_logprobs(
    request: PromptRequest, chunk: ScheduledChunk, logits: torch.Tensor, token_bytes: Callable[[int], bytes]
) -> None:
    """Keep the log-probabilities of tokens that are not sampled (``chunk.logprob_positions``), by the logits before
    each token.

    The first token of a prompt has none (NaN).
    """
    places, tokens = chunk.logprob_positions, chunk.sequence.tokens
    counts = [request.sampling.logprobs or 0] * len(places)
    scores = token_logprobs(logits, [tokens[i] for i in places], counts, token_bytes)
    if places.start >= chunk.sequence.prompt_len:
        request.choices[chunk.sequence.index].add_logprobs(places.start, scores)
        return
    known = request.prompt_logprobs
    if not known:
        known.append(TokenLogprob(tokens[0], token_bytes(tokens[0]), math.nan))
    known += scores[len(known) - places.start :]  # one that was preempted is scored again
