"""Mimi's decoder, chunk by chunk, with the same samples as in one go.

Its transformer looks back over thousands of positions, so a window of codes would not be enough: it keeps keys and
values. The convolutions around the transformer are causal and look back a few frames, which are decoded again with each
chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache

from omni_actors.models.common.convolutions import reach


class MimiStream:
    """One utterance through the decoder half of a :class:`transformers.MimiModel`, or of a codec built like it.
    ``latents`` makes the decoder's input, [1, hidden, n], from frames [n, width]."""

    def __init__(self, decoder: Any, latents: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._decoder = decoder
        self._latents = latents
        self._cache = DynamicCache(config=decoder.config)
        self._upsample = Window(decoder.upsample)
        self._seanet = Window(decoder.decoder_seanet)

    def push(self, frames: torch.Tensor) -> torch.Tensor:
        hidden = self._upsample(self._latents(frames))
        hidden = self._decoder.decoder_transformer(
            hidden.transpose(1, 2), past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        samples: torch.Tensor = self._seanet(hidden.transpose(1, 2))[0, 0]
        return samples


class Window:
    """A causal stack of convolutions over a sequence in pieces [1, channels, n]: each piece is run with as much before
    it as the stack can see."""

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._rate, self._before, _ = reach(stack, causal=True)
        self._past: torch.Tensor | None = None

    def __call__(self, piece: torch.Tensor) -> torch.Tensor:
        past = piece[..., :0] if self._past is None else self._past
        window = torch.cat([past, piece], dim=-1)
        self._past = window[..., max(0, window.shape[-1] - self._before) :]
        made: torch.Tensor = self._stack(window)
        return made[..., past.shape[-1] * self._rate :]
