"""Penalties for the tokens of earlier attempts, which vLLM sees as a part of the prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from vllm import SamplingParams

TOLD = "omni_actors_told"
"""The key of the tokens of earlier attempts in a request's ``SamplingParams.extra_args``."""

RequestLogits = Callable[[Sequence[int], torch.Tensor], torch.Tensor]


class ToldTokens(AdapterLogitsProcessor):
    """A logits processor that subtracts the missing penalties of a resumed answer's first tokens.

    vLLM counts an answer's own tokens for presence and frequency penalties, and takes a resumed answer's first tokens
    for a part of the prompt.
    """

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogits | None:
        told = (params.extra_args or {}).get(TOLD)
        return penalty_of(told, params) if told else None


def penalty_of(told: Sequence[int], params: Any) -> RequestLogits:
    """Return a function that subtracts the missing penalties of the ``told`` tokens.

    The function takes the tokens that vLLM counts, and the logits [vocabulary], which it changes in place. vLLM's
    penalties come afterwards: first the factor for repetition, then presence and frequency, which are subtracted. So
    the function subtracts in such a way that the factor, which told tokens have like any token of a prompt, is
    cancelled.
    """
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
