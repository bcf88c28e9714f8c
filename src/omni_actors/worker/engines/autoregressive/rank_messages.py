"""Messages from the leading rank of an autoregressive stage to the ranks that follow it.

They go over a socketpair to each follower, in the order in which the leader's cache changes. One that follows does the
same to its own part of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch

from omni_actors.worker.engines.autoregressive.attention import Extent
from omni_actors.worker.engines.autoregressive.decoder import Span


class Attach(msgspec.Struct, tag="attach", array_like=True):
    """Make a cache of so many blocks."""

    blocks: int
    block_size: int


class Pass(msgspec.Struct, tag="pass", array_like=True):
    """One pass: its tokens, the rows whose logits are wanted, (start, count, blocks) and (key, at, start, count) of its
    :class:`Extent` and :class:`Span` values, and (name, dtype, shape, bytes) of what the leader alone knows of it."""

    tokens: list[int]
    rows: list[int]
    extents: list[tuple[int, int, list[int]]]
    spans: list[tuple[int, int, int, int]]
    known: list[tuple[str, str, tuple[int, ...], bytes]] | None

    @classmethod
    def of(
        cls,
        tokens: list[int],
        rows: list[int],
        extents: Sequence[Extent],
        spans: Sequence[Span],
        known: Mapping[str, torch.Tensor] | None,
    ) -> Pass:
        return cls(
            tokens,
            rows,
            [(it.start, it.count, list(it.blocks)) for it in extents],
            [(it.key, it.at, it.start, it.count) for it in spans],
            None if known is None else [_packed(name, tensor) for name, tensor in known.items()],
        )

    def known_on(self, device: torch.device) -> dict[str, torch.Tensor] | None:
        """The tensors of ``known``, by name, on the follower's device."""
        if self.known is None:
            return None
        return {name: _unpacked(dtype, shape, raw, device) for name, dtype, shape, raw in self.known}


class Copy(msgspec.Struct, tag="copy", array_like=True):
    """Give block ``target`` the content of ``source``."""

    source: int
    target: int


class ZeroBlocks(msgspec.Struct, tag="scrub", array_like=True):
    """Make blocks zero."""

    blocks: list[int]


Order = Attach | Pass | Copy | ZeroBlocks


def _packed(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], bytes]:
    raw = tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes()
    return name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw


def _unpacked(dtype: str, shape: tuple[int, ...], raw: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)).view(shape).to(device)
