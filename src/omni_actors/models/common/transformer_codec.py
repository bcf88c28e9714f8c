"""Codecs of Qwen's kind: a transformer over frames in a sliding window, then convolutions that look back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from omni_actors.models.common.codec_memory import RememberingDecoder
from omni_actors.models.common.convolutions import reach
from omni_actors.worker.device import kernels_of
from omni_actors.worker.engines.oneshot.codec import CodecAdapter

Embed = Callable[[torch.Tensor], torch.Tensor]
"""Codes int64 [batch, frames, groups] → [batch, width, frames], each frame by itself."""


class TransformerCodec(CodecAdapter):
    """A codec stage; a family's :meth:`prepare` ends with :meth:`assemble`.

    The codec remembers its streams; or, with a context in the options, a window of frames is run through the
    transformer whole, and through the convolutions with just the few frames that they see.
    """

    def assemble(
        self, embed: Embed, transformer: Any, blocks: Iterable[nn.Module], before: Iterable[nn.Module] = ()
    ) -> None:
        """Take the network: ``before`` and ``blocks`` are convolutions in order, those behind the transformer with
        transposed ones among them. Sets :attr:`samples_per_frame` and :attr:`sufficient_context`."""
        self._embed = embed
        self._before = nn.Sequential(*before)
        self._transformer = transformer
        self._blocks = nn.Sequential(*flat(blocks))
        self._remembering = RememberingDecoder(embed, transformer, self._blocks, self._before, kernels_of(self.hello))
        self.samples_per_frame, self._convolutions_see, self.sufficient_context = contexts(
            self._before, transformer.config, self._blocks
        )

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return self.decode_after(codes, 0, torch.zeros(len(codes), dtype=torch.int64, device=codes.device))

    def decode_after(self, codes: torch.Tensor, context: int, begins: torch.Tensor) -> torch.Tensor:
        embedded = self._before(self._embed(codes)).transpose(1, 2)
        # Positions count from the stream's begin, so that rotations are rounded as in decoding in one go.
        positions = begins[:, None] + torch.arange(codes.shape[1], device=codes.device)
        seen = self._transformer(inputs_embeds=embedded, position_ids=positions).last_hidden_state
        skipped = max(0, context - self._convolutions_see)
        sound: torch.Tensor = self._blocks(seen[:, skipped:].transpose(1, 2))
        return sound[:, 0, (context - skipped) * self.samples_per_frame :].clamp(-1, 1)

    def remember(self) -> torch.Tensor:
        return self._remembering.fresh(self.groups, self.hello.device)

    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._remembering(codes, begins, memories, fresh)

    def recall(self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool) -> torch.Tensor:
        return self._remembering.recall(codes, begins, memories, fresh, self._convolutions_see + 1)


def flat(blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return modules in order, with lists of modules flattened."""
    found: list[nn.Module] = []
    for block in blocks:
        found += flat(block) if isinstance(block, nn.ModuleList) else [block]
    return found


def contexts(before: nn.Module, transformer: Any, blocks: nn.Module) -> tuple[int, int, int]:
    """Return the samples of a frame; the frames before a frame that ``blocks`` see; and the frames that the whole
    network sees, whose transformer (its config is given) sees a window in each layer."""
    rate, behind, _ = reach(blocks, causal=True)
    _, ahead, _ = reach(before, causal=True)
    return rate, behind, ahead + transformer.num_hidden_layers * (transformer.sliding_window - 1) + behind
