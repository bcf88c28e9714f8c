"""The vocoder's first half: a diffusion transformer that turns codec tokens into a mel spectrogram, block by block.

The network sees the spectrogram in blocks (``block_size`` frames): each layer attends within its block, some of them
one block back or ahead. So a block's frames depend on a window of blocks around it, which the flow's many evaluations
widen: ``evaluations * layers that look back`` (or ahead). A window that wide gives what the whole sequence gives; the
makers' own streaming uses two blocks back and one ahead (https://arxiv.org/abs/2503.20215, section 2.4).

Noise is a function of the request's seed and of the block's number, so that a block does not depend on the windows that
it was computed in beside what it sees in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavDiTModel,
    RungeKutta4ODESolver,
)

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
    """What one block is computed from: codes int64 [n], its noise [n * repeats, mels], and the place of the block's own
    codes, ``begin … end - 1``, in it."""

    codes: torch.Tensor
    noise: torch.Tensor
    begin: int
    end: int
    condition: Condition


def block_noise(seed: int, block: int, frames: int, mels: int) -> torch.Tensor:
    """What block number ``block`` of a request begins with: float32 [frames, mels], on the host."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + block) % (1 << 63))
    return torch.randn(frames, mels, generator=generator)


class Flow:
    """``steps`` is the number of the solver's time points, ``guidance`` the weight of classifier-free guidance, and
    ``sway`` bends the time points towards the begin (https://arxiv.org/abs/2410.06885)."""

    def __init__(self, model: Qwen2_5OmniToken2WavDiTModel, steps: int, guidance: float, sway: float | None) -> None:
        self._model = model
        self._guidance = guidance
        self.device = next(model.parameters()).device
        self.repeats = int(model.repeats)
        self.mels = int(model.mel_dim)
        self.block_codes = int(model.block_size) // self.repeats
        self.codes = int(model.config.num_embeds)
        times = torch.linspace(0, 1, steps, device=self.device)
        if sway is not None:
            times = times + sway * (torch.cos(torch.pi / 2 * times) - 1 + times)
        self._times = times
        evaluations = 4 * (steps - 1)
        self.sufficient_back = evaluations * sum(block.look_backward_block for block in model.transformer_blocks)
        self.sufficient_ahead = evaluations * sum(block.look_ahead_block for block in model.transformer_blocks)

    def condition(self, speaker: Speaker) -> Condition:
        reference = speaker.ref_mel.to(self.device)
        encode = self._model.input_embed.spk_encoder
        return Condition(speaker.cond.to(self.device)[0], encode(reference)[0], encode(torch.zeros_like(reference))[0])

    def noise(self, seed: int, block: int) -> torch.Tensor:
        """Of a whole block: float32 [block, mels]."""
        return block_noise(seed, block, self.block_codes * self.repeats, self.mels).to(self.device)

    def solve(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Each window's own block: log-mel float32 [frames, mels]. The windows have equal lengths."""
        codes = torch.stack([w.codes for w in windows])
        conditions = [w.condition for w in windows]
        embed = self._model.text_embed
        constant = torch.cat(
            (
                torch.stack([c.likeness for c in conditions] + [c.unlike for c in conditions])
                .unsqueeze(1)
                .expand(-1, codes.shape[1] * self.repeats, -1),
                torch.cat((embed(codes), embed(codes, drop_code=True))),
                torch.cat((vectors := torch.stack([c.vector for c in conditions]), torch.zeros_like(vectors)))
                .unsqueeze(1)
                .expand(-1, codes.shape[1] * self.repeats, -1),
            ),
            -1,
        )
        noise = torch.stack([w.noise for w in windows])
        frames = noise.shape[1]
        places = torch.arange(frames, device=self.device)[None].expand(2 * len(windows), -1)
        rotary = self._model.rotary_embed(noise, places)
        blocks = self._model._create_block_diff(torch.cat((noise, noise)))

        def velocity(time: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            both = self._evaluate(torch.cat((x, x)), constant, time, rotary, blocks)
            guided, free = both.chunk(2)
            return guided + (guided - free) * self._guidance

        solver = RungeKutta4ODESolver(function=velocity, initial_value=noise)
        solved = solver.integrate(self._times)[-1]
        return [mel[w.begin * self.repeats : w.end * self.repeats] for mel, w in zip(solved, windows, strict=True)]

    def _evaluate(
        self, x: torch.Tensor, constant: torch.Tensor, time: torch.Tensor, rotary: Any, blocks: torch.Tensor
    ) -> torch.Tensor:
        model = self._model
        moment = model.time_embed(time.repeat(len(x)))
        hidden = model.input_embed.proj(torch.cat((x, constant), -1))
        for block in model.transformer_blocks:
            hidden = block(hidden, moment, position_embeddings=rotary, block_diff=blocks)
        out: torch.Tensor = model.proj_out(model.norm_out(hidden, moment))
        return out
