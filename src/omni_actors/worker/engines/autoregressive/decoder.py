"""The decoder interface: the network that a model family gives to the autoregressive engine.

A family brings an :class:`AutoregressiveAdapter` (prompts, vocabulary, defaults) whose ``decoder`` is the network: it
computes a flat list of tokens, of many sequences at once, and calls :class:`Attention` in every layer. Where keys and
values lie, and which tokens see which, is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a decoder keeps per token: a key and a value of ``head_dim`` for each of ``kv_heads`` in each layer.

    ``side`` is the width of one more vector, which the next stage gets (hidden states, embeddings); 0 for none. It lies
    beside the keys, so that whoever takes over a computed token takes over this too.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    side: int = 0

    @property
    def token_bytes(self) -> int:
        return (self.layers * 2 * self.kv_heads * self.head_dim + self.side) * int(self.dtype.itemsize)


class Attention(Protocol):
    """Causal self-attention of one step's tokens over their own sequences."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Keep the new keys and values and attend.

        ``query`` is [tokens, heads, head_dim]; ``key_value`` is [tokens, 2 * kv_heads, head_dim], keys first. ``heads``
        is a multiple of ``kv_heads``; neighbouring heads share one. A token sees the last ``window`` tokens up to
        itself. Scores are squeezed into ±``softcap``. Returns [tokens, heads, head_dim].
        """
        ...

    def keep(self, side: torch.Tensor) -> None:
        """Keep the side vectors of the step's tokens: [tokens, kv_shape.side]."""
        ...


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step: ``tokens`` and ``positions`` are int64 [tokens]; ``rows`` int64 [rows] are the tokens after which the
    next one is wanted; ``spans`` say which request's tokens are where, for a family whose inputs are more than token
    ids. ``known`` is what :meth:`LeadingDecoder.known` gave of it, where it was asked."""

    tokens: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    spans: Sequence[Span] = ()
    known: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start … start + count - 1`` of a sequence of request ``key``, from place ``at`` of the flat list on."""

    key: int
    at: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``logits`` [rows, vocab_size] for the step's rows, in the model's dtype or float32. ``hidden`` [rows, width] is
    the last layer's output there, for an adapter that asks more of it than the next token (:meth:`sampled`)."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Decoder(Protocol):
    """The network. Stateless between steps but for what :class:`Attention` keeps."""

    kv_shape: KVShape
    vocab_size: int
    device: torch.device

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        """Compute the step's tokens: what comes out after ``inputs.rows``."""
        ...


@runtime_checkable
class RecordableDecoder(Decoder, Protocol):
    """A network in two halves. The second one computes from tensors alone, and waits for no result of the device, so
    that a platform may record what it launches (:mod:`omni_actors.worker.engines.autoregressive.graphs`). ``forward``
    is both."""

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...] | None:
        """What the step computes from, by token: tensors [tokens, …], as many and of the same further sizes and dtypes
        in every step of one token per sequence. ``None`` for one that is not only that. Called before :meth:`compute`,
        perhaps twice."""
        ...

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        """The step of what was prepared. ``rows`` ``None`` are all of its tokens, in order."""
        ...


@runtime_checkable
class LeadingDecoder(Decoder, Protocol):
    """A network whose first rank alone knows what a request's input is beside tokens: the other ranks are told."""

    def known(self, inputs: StepInputs) -> Mapping[str, torch.Tensor]:
        """What a rank must have of this step, beside tokens and positions, to compute it (:attr:`StepInputs.known`)."""
        ...
