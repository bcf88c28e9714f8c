"""Penalties for tokens that an earlier attempt of a request has told, which are part of the prompt to vLLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from vllm import SamplingParams

TOLD = "omni_actors_told"
"""Where a request's parameters have those tokens (``SamplingParams.extra_args``)."""

RequestLogits = Callable[[Sequence[int], torch.Tensor], torch.Tensor]


class ToldTokens(AdapterLogitsProcessor):
    """vLLM counts an answer's own tokens for its presence and frequency penalties, and a resumed answer's first ones
    are a prompt to it. What they miss of their penalty is taken off here."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogits | None:
        told = (params.extra_args or {}).get(TOLD)
        return penalty_of(told, params) if told else None


def penalty_of(told: Sequence[int], params: Any) -> RequestLogits:
    """Called with the tokens that vLLM counts itself, and the logits [vocabulary], which are changed in place.

    vLLM's penalties come after it: first repetition's, a factor, then the two that are subtracted. So what is
    subtracted here is subtracted as if behind that factor, which told tokens have as any token of a prompt."""
    counts = Counter(told)
    ids = torch.tensor(list(counts))
    often = torch.tensor([float(count) for count in counts.values()]) * params.frequency_penalty
    factor, presence = params.repetition_penalty, params.presence_penalty

    def penalized(output: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        again = set(output)
        once = torch.tensor([0.0 if token in again else presence for token in counts])
        places = ids.to(logits.device)
        values = logits[places]
        values = torch.where(values > 0, values / factor, values * factor) - (often + once).to(values)
        logits[places] = torch.where(values > 0, values * factor, values / factor)
        return logits

    return penalized
