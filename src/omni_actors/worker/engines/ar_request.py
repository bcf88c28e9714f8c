"""A request as the autoregressive engine keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import TokenLogprob, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.choice import Choice
from omni_actors.worker.engines.decoder import AutoregressiveAdapter
from omni_actors.worker.engines.detokenize import StopStrings, TextStream
from omni_actors.worker.engines.sampling import Choosing, Row, token_logprobs
from omni_actors.worker.engines.sequence import Chunk, Sequence

CONTEXT_TOKENS = 8
"""So many of the prompt's last tokens say how the first token of its continuation is decoded."""


@dataclass(slots=True)
class Request:
    """``first`` is the sequence that computes the prompt, and then the first of the ``choices``, which there are once
    the prompt is complete. ``opened`` says that the adapter knows the request; ``most`` is its own bound on the
    answer."""

    work: Work
    sampling: Sampling
    choosing: Choosing
    stops: StopStrings
    first: Sequence
    open_ports: set[str]
    continued: bool = False
    final: bool = False
    most: int | None = None
    opened: bool = True
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return [self.first, *(choice.sequence for choice in self.choices[1:])]

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

    @property
    def prompt_param(self) -> str:
        """The field of the client's request that the prompt comes from."""
        prompt = self.work.params.get("prompt")
        if prompt is None and "speech" in self.work.params:
            return "input"
        return "prompt" if isinstance(prompt, Prompt) and prompt.messages is None else "messages"


def limit_of(request: Request, max_len: int, usual: int | None, *, prompt_only: bool) -> int:
    """Most tokens that a choice may have: what is asked for and what the adapter bounds it to, without either
    ``usual``, else what ``max_len`` tokens leave.
    ``prompt_only`` says that they are sampled elsewhere. Raises (400) when the context is too short."""
    length, asked, own = request.first.prompt_len, request.sampling.max_tokens, request.most
    most = own if asked is None else asked if own is None else min(asked, own)
    room = max_len - length
    if room >= 0 and (request.final or prompt_only):
        return 0
    if room < (1 if most is None else most):
        wanted = f"{length} tokens" if most is None else f"{length} tokens and {most} more are asked for"
        raise invalid_request(
            f"This model's maximum context length is {max_len} tokens; the prompt has {wanted}.",
            param=request.prompt_param,
            code="context_length_exceeded",
        )
    if most is not None:
        return most
    return room if usual is None else min(room, usual)


def choice_of(request: Request, sequence: Sequence, limit: int, adapter: AutoregressiveAdapter, stage: str) -> Choice:
    """A choice of a request whose prompt is complete: it follows ``sequence`` for at most ``limit`` tokens."""
    sampling, vocabulary = request.sampling, adapter.vocabulary
    prompt = sequence.tokens[: sequence.prompt_len]
    ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else adapter.eos)
    penalized = prompt if adapter.penalize_prompt else ()
    row = Row(request.choosing, stage=stage, choice=sequence.index, prompt=penalized, stop_ids=ends)
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


def score_prompt(request: Request, chunk: Chunk, logits: torch.Tensor, token_bytes: Callable[[int], bytes]) -> None:
    """Keep the log-probabilities of prompt tokens, of the logits before each; the prompt's first one has none (NaN)."""
    known, tokens = request.prompt_logprobs, chunk.sequence.tokens
    if not known:
        known.append(TokenLogprob(tokens[0], token_bytes(tokens[0]), math.nan))
    after = range(chunk.start + 1, chunk.start + 1 + chunk.scored)
    counts = [request.sampling.logprobs or 0] * chunk.scored
    scores = token_logprobs(logits, [tokens[i] for i in after], counts, token_bytes)
    known += scores[len(known) - after.start :]  # one that was preempted is scored again
