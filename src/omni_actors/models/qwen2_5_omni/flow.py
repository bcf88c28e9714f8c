"""The vocoder's first half: a diffusion transformer that turns codec tokens into a mel spectrogram, block by block.

The network sees the spectrogram in blocks (``block_size`` frames): each layer attends within its block, some of them
one block back or ahead. Blocks are therefore solved from left to right, in groups: at each of the flow's evaluations
the keys and values of a group's last block are remembered for the layers that look back, and the next group continues
as if both groups were one sequence. Blocks ahead cannot be remembered: a group is solved together with some following
blocks, and the following blocks are solved again in their own group. ``evaluations * layers that look ahead`` following
blocks give the same result as the whole sequence; the makers' own streaming uses one following block
(https://arxiv.org/abs/2503.20215, section 2.4).

Noise is a function of the request's seed and of the block's number. A block therefore depends only on the content of
its windows, not on how windows were cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omni_actors.models.qwen2_5_omni.dit import Layout, Network, Prepared
from omni_actors.models.qwen2_5_omni.speakers import Speaker


@dataclass(frozen=True, slots=True)
class Condition:
    """A speaker as the network takes it: ``vector`` [dim], ``likeness`` [dim] encoded from the reference spectrogram,
    and ``unlike``, the same of silence, for guidance."""

    vector: torch.Tensor
    likeness: torch.Tensor
    unlike: torch.Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """The input of a group of blocks: codes int64 [n], from block number ``block`` on (only the last block may be
    short), the noise of the codes [n * repeats, mels], and the place ``begin … end - 1`` of the group's own codes.
    ``past`` is the memory of the block before (:class:`Solved`), ``None`` for no memory."""

    codes: torch.Tensor
    noise: torch.Tensor
    block: int
    begin: int
    end: int
    condition: Condition
    past: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Solved:
    """Log-mel float32 [frames, mels], and the last block's memory for the next window, float32
    [evaluations, layers that look back, keys and values, heads, guided and free, block, head]."""

    mel: torch.Tensor
    memory: torch.Tensor | None


def block_noise(seed: int, block: int, frames: int, mels: int) -> torch.Tensor:
    """Draw the noise with which block number ``block`` of a request begins: float32 [frames, mels], on the host."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + block) % (1 << 63))
    return torch.randn(frames, mels, generator=generator)


class Flow:
    """``steps`` is the number of the solver's time points, ``guidance`` the weight of classifier-free guidance, and
    ``sway`` bends the time points towards the begin (https://arxiv.org/abs/2410.06885)."""

    def __init__(self, model: Qwen2_5OmniToken2WavDiTModel, steps: int, guidance: float, sway: float | None) -> None:
        self._guidance = guidance
        self._encode = model.input_embed.spk_encoder
        self._embedding = model.text_embed.codec_embed
        self.device = next(model.parameters()).device
        self.repeats = int(model.repeats)
        self.mels = int(model.mel_dim)
        self.block_codes = int(model.block_size) // self.repeats
        self.codes = int(model.config.num_embeds)
        times = torch.linspace(0, 1, steps, device=self.device)
        if sway is not None:
            times = times + sway * (torch.cos(torch.pi / 2 * times) - 1 + times)
        lengths = times[1:] - times[:-1]
        self._lengths: list[float] = lengths.tolist()
        evaluated = torch.stack((times[:-1], times[:-1] + lengths / 3, times[:-1] + lengths * 2 / 3, times[1:]), 1)
        self._network = Network(model, evaluated.flatten())
        evaluations = self._network.evaluations
        self.sufficient_back = evaluations * sum(block.look_backward_block for block in model.transformer_blocks)
        self.sufficient_ahead = evaluations * sum(block.look_ahead_block for block in model.transformer_blocks)

    def condition(self, speaker: Speaker) -> Condition:
        reference = speaker.ref_mel.to(self.device)
        silence = torch.zeros_like(reference)
        return Condition(speaker.cond.to(self.device)[0], self._encode(reference)[0], self._encode(silence)[0])

    def noise(self, seed: int, block: int) -> torch.Tensor:
        """Return the noise of a whole block: float32 [block, mels]."""
        return block_noise(seed, block, self.block_codes * self.repeats, self.mels).to(self.device)

    def solve(self, windows: Sequence[Window]) -> list[Solved]:
        """Each window's own group. Windows may have any lengths: none sees another."""
        counts = [-(-len(w.codes) // self.block_codes) for w in windows]
        prepared = self._network.prepare(self._layout(windows, counts))
        past = torch.zeros(self._network.memory_shape(len(windows)), device=self.device)
        future = torch.empty_like(past)
        for i, window in enumerate(windows):
            if window.past is not None:
                past[..., i :: len(windows), :, :] = window.past
        noise = torch.cat([self._blocks(w.noise, count) for w, count in zip(windows, counts, strict=True)])
        mels = self._integrate(noise, self._constant(windows, counts), prepared, past, future).split(counts)
        return [
            Solved(
                mel.flatten(0, 1)[w.begin * self.repeats : w.end * self.repeats],
                future[..., i :: len(windows), :, :].clone(),
            )
            for i, (mel, w) in enumerate(zip(mels, windows, strict=True))
        ]

    def _blocks(self, frames: torch.Tensor, count: int) -> torch.Tensor:
        """[frames, …] → [count, block, …], the last one filled up with zeros."""
        size = self.block_codes * self.repeats
        return F.pad(frames, (0, 0, 0, count * size - len(frames))).unflatten(0, (count, size))

    def _layout(self, windows: Sequence[Window], counts: Sequence[int]) -> Layout:
        size = self.block_codes * self.repeats
        starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
        ends = torch.tensor(counts).cumsum(0) - 1
        kept = starts + torch.tensor([(w.end - 1) // self.block_codes for w in windows])
        blocks = torch.cat([torch.arange(w.block, w.block + count) for w, count in zip(windows, counts, strict=True)])
        filled = torch.full_like(blocks, size)
        filled[ends] = torch.tensor([(len(w.codes) - 1) % self.block_codes + 1 for w in windows]) * self.repeats
        positions = (blocks[:, None] * size + torch.arange(size)).float()
        total, remembered = len(blocks), torch.tensor([w.past is not None for w in windows])

        def twice(places: torch.Tensor, shift: int = 0) -> torch.Tensor:
            return torch.cat((places, places + shift) if shift else (places, places)).to(self.device)

        return Layout(
            twice(starts, total),
            twice(ends, total),
            twice(kept, total),
            twice(filled),
            twice(remembered),
            twice(positions),
        )

    def _constant(self, windows: Sequence[Window], counts: Sequence[int]) -> torch.Tensor:
        """Compute the contribution of voices and codes: guided [blocks, block, width], and free."""
        guided: list[torch.Tensor] = []
        free: list[torch.Tensor] = []
        for window, count in zip(windows, counts, strict=True):
            condition = window.condition
            for rows, likeness, codes, vector in (
                (guided, condition.likeness, window.codes, condition.vector),
                (free, condition.unlike, torch.zeros_like(window.codes), torch.zeros_like(condition.vector)),
            ):
                embedded = self._embedding(codes).repeat_interleave(self.repeats, 0)
                beside = (likeness.expand(len(embedded), -1), embedded, vector.expand(len(embedded), -1))
                rows.append(self._blocks(torch.cat(beside, -1), count))
        return self._network.constant(torch.cat(guided + free))

    def _integrate(
        self, x: torch.Tensor, constant: torch.Tensor, prepared: Prepared, past: torch.Tensor, future: torch.Tensor
    ) -> torch.Tensor:
        """From noise to spectrogram, by the fourth-order Runge-Kutta method that is called the 3/8 rule."""
        for step, length in enumerate(self._lengths):

            def velocity(stage: int, at: torch.Tensor, first: int = 4 * step) -> torch.Tensor:
                i = first + stage
                return self._network.velocity(i, at, constant, self._guidance, prepared, past[i], future[i])

            k1 = velocity(0, x)
            k2 = velocity(1, torch.add(x, k1, alpha=length / 3))
            k3 = velocity(2, torch.add(x, k2, alpha=length).sub_(k1, alpha=length / 3))
            k4 = velocity(3, torch.add(x, k3 - k2 + k1, alpha=length))
            x = torch.add(x, k4 + k1 + 3 * (k2 + k3), alpha=length / 8)
        return x
