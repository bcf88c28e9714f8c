"""The decoder interface: the network that a model family gives to the autoregressive engine.

A family brings an :class:`AutoregressiveAdapter` (prompts, vocabulary, defaults) whose ``decoder`` is the network. The
decoder computes a flat list of tokens of many sequences at once, and calls :class:`Attention` in every layer. The
attention knows where keys and values lie, and which tokens see each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of a decoder's cache for each token: a key and a value of ``head_dim`` for each of ``kv_heads`` in each
    layer.

    ``side`` is the width of one more vector for the next stage (hidden states, embeddings); 0 for none. The vector lies
    beside the keys, so that a computed token is always taken over with its vector.
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
    """The inputs of one step.

    ``tokens`` and ``positions`` are int64 [tokens]. ``rows``, int64 [rows], are the tokens whose logits are wanted.
    ``spans`` are the places of each request's tokens, for a family whose inputs are more than token ids. ``known`` is
    the result of :meth:`LeadingDecoder.known` for this step, if any.
    """

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
    """The output of one step.

    ``logits`` [rows, vocab_size] are in the model's dtype or float32. ``hidden`` [rows, width] is the last layer's
    output, for an adapter that computes more than the next token (:meth:`sampled`).
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Decoder(Protocol):
    """The network. Its only state between steps is the cache of :class:`Attention`."""

    kv_shape: KVShape
    vocab_size: int
    device: torch.device

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        """Compute the step's tokens, and return the output after ``inputs.rows``."""
        ...


@runtime_checkable
class CapturableDecoder(Decoder, Protocol):
    """A network in two halves; ``forward`` runs both.

    The second half computes from tensors alone and waits for no result of the device, so that a platform may capture
    its launches (:mod:`omni_actors.worker.engines.autoregressive.graphs`).
    """

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...] | None:
        """Return the inputs of :meth:`compute`, tensors [tokens, …].

        Their number, further sizes and dtypes are equal in every step of one token per sequence. ``None`` for any other
        step. Called before :meth:`compute`, perhaps twice.
        """
        ...

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        """Compute the step from the prepared inputs. ``rows`` of ``None`` stands for all tokens, in order."""
        ...


@runtime_checkable
class LeadingDecoder(Decoder, Protocol):
    """A network with request inputs beside tokens, which the first rank knows and sends to the other ranks."""

    def known(self, inputs: StepInputs) -> Mapping[str, torch.Tensor]:
        """Return the inputs of a step that other ranks need beside tokens and positions (:attr:`StepInputs.known`)."""
        ...
