"""A test at load time that a network gives the same logits over a paged cache as without a cache.

transformers hands attention to a function of ours; a class's other computations (a second softmax, keys and values of
unequal size) are nowhere declared. Therefore a few tokens go through the network alone, then in two steps over a cache,
and the logits are compared.
"""

from __future__ import annotations

from typing import Any

import torch

from omni_actors.models.causal_lm.generic import GenericDecoder, UnsupportedModel
from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence

CUT, LENGTH = 7, 12
"""Tokens of the first step, and of both."""

LEAST_LIKENESS = {torch.float32: 0.99}
OTHER_LIKENESS = 0.8
"""Cosine of the logits of both ways, at least. Rounding moves them a little, and with experts a little more."""

_FINITE = 1e4


@torch.inference_mode()
def logits_by_itself(model: Any) -> torch.Tensor:
    """The logits [2, vocabulary] behind the tokens of each step, by the network's own attention."""
    tokens = torch.arange(LENGTH, device=model.device).unsqueeze(0)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    return logits[[CUT - 1, LENGTH - 1]].float()


@torch.inference_mode()
def check_computes(name: str, decoder: GenericDecoder, wanted: torch.Tensor, kernels: Kernels) -> None:
    """Raises :class:`UnsupportedModel` if the decoder's logits are not those (:func:`logits_by_itself`)."""
    dtype = decoder.kv_shape.dtype
    block_size = kernels.block_size(dtype)
    count = -(-LENGTH // block_size)
    runner = ModelRunner(decoder, count, block_size, kernels)
    sequence = Sequence(-1, 0, 0, list(range(LENGTH)), LENGTH, blocks=list(range(count)))
    try:
        steps = [
            runner.run([ScheduledChunk(sequence, start, end - start, True)]).logits
            for start, end in ((0, CUT), (CUT, LENGTH))
        ]
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModel(f"{name} does not run over a paged cache: {error}") from error
    made = torch.cat(steps).float()
    if not wanted.amax(-1).isfinite().all():  # damaged weights: the warm-up says so
        return
    likeness = torch.cosine_similarity(_bounded(made), _bounded(wanted.to(made.device)), dim=-1).min()
    if not likeness >= LEAST_LIKENESS.get(dtype, OTHER_LIKENESS):
        raise UnsupportedModel(f"{name} computes something else over a paged cache than by itself")


def _bounded(logits: torch.Tensor) -> torch.Tensor:
    """Replace infinite logits by finite ones: a logit of minus infinity is a token excluded by the family."""
    return logits.clamp(-_FINITE, _FINITE)
