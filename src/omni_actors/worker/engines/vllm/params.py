"""Conversion between this project's sampling parameters and vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from omni_actors.protocol.params import Constraint
from omni_actors.protocol.request import TokenLogprob
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.request import PromptRequest
from omni_actors.worker.engines.vllm.told import TOLD
from vllm import SamplingParams

UNIFORM_BITS = 40
"""Bits of :meth:`~omni_actors.worker.engines.autoregressive.sampling.SamplingState.uniform`."""


def seed_of(choice: Choice) -> int:
    """Return the seed of the draw at the choice's current position.

    The seed depends on (seed, stage, choice, position) alone, so that the next token does not depend on the process
    that computed the tokens before.
    """
    return int(choice.sampling_state.uniform() * (1 << UNIFORM_BITS))


def counts_tokens(request: PromptRequest) -> bool:
    """Whether the next token depends on the counts of tokens in the answer so far."""
    return bool(request.sampling_params.presence_penalty or request.sampling_params.frequency_penalty)


def sampling_params(request: PromptRequest, choice: Choice, eos: frozenset[int], scored: bool) -> SamplingParams:
    """Return vLLM's parameters for the rest of a choice, behind its tokens so far.

    Text and stop strings are not vLLM's part. ``scored`` asks for the log-probabilities of the tokens so far too.
    """
    params, sampling, done = request.sampling_params, request.sampling, choice.completion_tokens
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}
    told = choice.sequence.tokens[choice.sequence.prompt_len :] if counts_tokens(request) else []
    return SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p or 1e-6,  # vLLM takes no smaller value; either leaves the most likely token only
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias) or None,
        seed=None if params.greedy else seed_of(choice),
        max_tokens=max(1, choice.limit - done),
        min_tokens=min(max(0, params.min_tokens - done), max(1, choice.limit - done)),
        stop_token_ids=sorted(ends),
        ignore_eos=True,  # its ids are among the others
        logprobs=sampling.logprobs,
        prompt_logprobs=(sampling.logprobs or 0) if scored else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
        extra_args={TOLD: told} if told else None,
        structured_outputs=None if sampling.constraint is None else structured_outputs(sampling.constraint),
        skip_reading_prefix_cache=None if request.first.reuse else True,
    )


def structured_outputs(constraint: Constraint) -> StructuredOutputsParams:
    return StructuredOutputsParams(
        json=constraint.json,
        json_object=constraint.json_object or None,
        regex=constraint.regex,
        choice=constraint.choice,
        grammar=constraint.grammar,
    )


def token_logprob(
    token_id: int, entry: Mapping[int, Any], count: int, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """Return one token's log-probability and its ``count`` best alternatives, from vLLM's entry for the position."""
    best = sorted((it.rank, other, it.logprob) for other, it in entry.items() if it.rank <= count)
    return TokenLogprob(
        token_id,
        token_bytes(token_id),
        entry[token_id].logprob,
        tuple((other, token_bytes(other), logprob) for _, other, logprob in best),
    )


def prompt_scores(
    tokens: Sequence[int],
    places: range,
    entries: Sequence[Mapping[int, Any] | None],
    count: int,
    token_bytes: Callable[[int], bytes],
) -> list[TokenLogprob]:
    """Return the log-probabilities of the tokens at ``places`` of a prompt that vLLM has scored.

    The first token of a prompt has no log-probability, and is not among ``places``.
    """
    found = []
    for place in places:
        entry = entries[place]
        assert entry is not None
        found.append(token_logprob(tokens[place], entry, count, token_bytes))
    return found
