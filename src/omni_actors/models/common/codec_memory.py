"""Codec decoders of Qwen's kind, decoded piece by piece: each frame is decoded once, and its state remembered.

Such a decoder is a transformer whose layers see a window of frames, then convolutions that look back, with transposed
ones between them. From the past a layer needs its window's keys and values, and a convolution the end of its input.
These values make up a stream's memory, one flat row, so that streams that continue together are one batch. Rounding
differs from decoding in one go only by the products' shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from omni_actors.platforms.runtime.kernels import Kernels


class RememberingDecoder:
    """A decoder that remembers its streams.

    ``embed`` makes [batch, width, frames] of codes, each frame by itself. ``before`` (convolutions), ``transformer``
    and ``blocks`` (convolutions), in this order, are the model's own modules, whose weights are used unchanged, by
    ``kernels``.
    """

    def __init__(
        self,
        embed: Callable[[torch.Tensor], torch.Tensor],
        transformer: Any,
        blocks: Iterable[nn.Module],
        before: Iterable[nn.Module],
        kernels: Kernels,
    ) -> None:
        self._embed = embed
        self._before = _chain(_steps(before, kernels))
        self._transformer = transformer
        self._blocks = _chain(_steps(blocks, kernels))
        if any(kind != "sliding_attention" for kind in transformer.config.layer_types):
            raise ValueError("a layer that sees everything would have to remember everything")
        self._memory: torch.Tensor | None = None

    @torch.inference_mode()
    def fresh(self, groups: int, device: torch.device | str) -> torch.Tensor:
        """Return the memory [size] of a stream that has not begun."""
        if self._memory is None:
            codes = torch.zeros(1, 2, groups, dtype=torch.int64, device=device)
            dry = _Pass(None, True)
            self._run(codes, torch.zeros(1, dtype=torch.int64, device=device), dry)
            self._memory = torch.zeros_like(dry.memories()[0])
        return self._memory

    def __call__(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode the next frames of some streams.

        ``codes`` int64 [batch, frames, groups] are the frames from ``begins`` int64 [batch] on, with the streams'
        memories [batch, size]. Returns the samples [batch, n] that are final now, and the memories after these frames.
        ``fresh`` says that all streams begin here; then the first samples are fewer.
        """
        run = _Pass(memories, fresh)
        samples = self._run(codes, begins, run)
        return samples, run.memories()

    @torch.inference_mode()
    def recall(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool, last: int
    ) -> torch.Tensor:
        """Return the memories after some frames, without the samples. The convolutions behind the transformer see no
        more than ``last`` frames."""
        run = _Pass(memories, fresh)
        x = self._attend(self._before(self._embed(codes), run).transpose(1, 2), begins, run).transpose(1, 2)
        if x.shape[2] > last:
            x, run.fresh = x[:, :, -last:], False
        self._blocks(x, run)
        return run.memories()

    def _run(self, codes: torch.Tensor, begins: torch.Tensor, run: _Pass) -> torch.Tensor:
        x = self._before(self._embed(codes), run)
        x = self._attend(x.transpose(1, 2), begins, run).transpose(1, 2)
        return self._blocks(x, run)[:, 0].clamp(-1, 1)

    def _attend(self, x: torch.Tensor, begins: torch.Tensor, run: _Pass) -> torch.Tensor:
        transformer = self._transformer
        frames, device = x.shape[1], x.device
        past = transformer.config.sliding_window - 1
        places = begins[:, None] + torch.arange(frames, device=device)
        seen = begins[:, None] + torch.arange(-past, frames, device=device)
        back = places[:, :, None] - seen[:, None, :]
        mask = ((back >= 0) & (back <= past) & (seen >= 0)[:, None, :]).unsqueeze(1)
        x = x if getattr(transformer, "input_proj", None) is None else transformer.input_proj(x)
        cos, sin = transformer.rotary_emb(x, places)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        for layer in transformer.layers:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            shape = (*normed.shape[:2], -1, attention.head_dim)
            query = _turn(attention.q_norm(attention.q_proj(normed).view(shape)).transpose(1, 2), cos, sin)
            key = _turn(attention.k_norm(attention.k_proj(normed).view(shape)).transpose(1, 2), cos, sin)
            value = attention.v_proj(normed).view(shape).transpose(1, 2)
            heads = key.shape[1]
            keys = torch.cat((run.take(x, heads, past, attention.head_dim), key), 2)
            values = torch.cat((run.take(x, heads, past, attention.head_dim), value), 2)
            run.keep(keys[:, :, frames:])
            run.keep(values[:, :, frames:])
            out = F.scaled_dot_product_attention(
                query, keys, values, mask, scale=attention.scaling, enable_gqa=heads != query.shape[1]
            )
            x = x + layer.self_attn_layer_scale(attention.o_proj(out.transpose(1, 2).flatten(2)))
            x = x + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(x)))
        x = transformer.norm(x)
        return x if getattr(transformer, "output_proj", None) is None else transformer.output_proj(x)


class _Pass:
    """One pass: memories are read and written in the order of the modules."""

    def __init__(self, old: torch.Tensor | None, fresh: bool) -> None:
        self.fresh = fresh
        self._old = old
        self._at = 0
        self._new: list[torch.Tensor] = []

    def take(self, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """Return the next part [batch, *shape] of the memories; zeros before a stream's begin."""
        if self._old is None:
            return like.new_zeros(len(like), *shape)
        size = int(torch.Size(shape).numel())
        part = self._old[:, self._at : self._at + size].view(-1, *shape)
        self._at += size
        return part

    def keep(self, part: torch.Tensor) -> None:
        self._new.append(part.flatten(1))

    def memories(self) -> torch.Tensor:
        """The new memories [batch, size]."""
        return torch.cat(self._new, 1)


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return rotary embedding of [batch, heads, frames, head_dim]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


Step = Callable[[torch.Tensor, _Pass], torch.Tensor]
"""[batch, channels, steps] → the same of the next layer."""


def _steps(blocks: Iterable[Any], kernels: Kernels) -> list[Step]:
    return [_step(block, kernels) for block in blocks]


def _step(block: Any, kernels: Kernels) -> Step:
    """Return the operation of a module, by its type."""
    if isinstance(block, nn.ModuleList):
        return _chain(_steps(block, kernels))
    if hasattr(block, "block"):
        return _step(block.block, kernels)
    if hasattr(block, "dwconv"):
        return _conv_next(block, kernels)
    if hasattr(block, "conv2"):
        inner = _chain(_steps((block.act1, block.conv1, block.act2, block.conv2), kernels))
        return lambda x, run: x + inner(x, run)
    if isinstance(getattr(block, "conv", None), nn.ConvTranspose1d):
        return _transposed(block)
    if hasattr(block, "conv"):
        return _convolution(block.conv, kernels)
    if hasattr(block, "alpha") and hasattr(block, "beta"):
        return _snake(block)
    raise ValueError(f"a {type(block).__name__} cannot be taken apart")


def _chain(steps: list[Step]) -> Step:
    def apply(x: torch.Tensor, run: _Pass) -> torch.Tensor:
        for step in steps:
            x = step(x, run)
        return x

    return apply


def _snake(block: Any) -> Step:
    """Return x + sin²(αx) / β, with both parameters on a logarithmic scale."""
    alpha = block.alpha.detach().exp().view(1, -1, 1)
    scale = 1 / (block.beta.detach().exp().view(1, -1, 1) + block.no_div_by_zero)
    return lambda x, run: torch.addcmul(x, scale, torch.sin(x * alpha).square_())


def _conv_next(block: Any, kernels: Kernels) -> Step:
    convolve = _convolution(block.dwconv.conv, kernels)

    def apply(x: torch.Tensor, run: _Pass) -> torch.Tensor:
        beside = block.norm(convolve(x, run).transpose(1, 2))
        beside = block.gamma * block.pwconv2(block.act(block.pwconv1(beside)))
        return x + beside.transpose(1, 2)

    return apply


def _convolution(conv: nn.Conv1d, kernels: Kernels) -> Step:
    """Return a convolution that looks back over the memory."""
    kernel, dilation, channels = conv.kernel_size[0], conv.dilation[0], conv.in_channels
    past = (kernel - 1) * dilation
    assert conv.stride[0] == 1
    unfolded = dilation > 1 and conv.groups == 1 and kernels.unfolds(channels)
    assert conv.bias is not None
    weight, bias = conv.weight.detach().flatten(1), conv.bias.detach().view(1, -1, 1)

    def apply(x: torch.Tensor, run: _Pass) -> torch.Tensor:
        batch, steps = len(x), x.shape[2]
        if past:
            x = torch.cat((run.take(x, channels, past), x), 2)
            run.keep(x[:, :, steps:])
        y: torch.Tensor
        if unfolded:
            taps = x.unfold(2, past + 1, 1)[..., ::dilation].permute(0, 1, 3, 2)
            y = torch.baddbmm(bias, weight.expand(batch, -1, -1), taps.reshape(batch, channels * kernel, steps))
        else:
            y = conv(x)
        return y

    return apply


def _transposed(module: Any) -> Step:
    """Return a transposed convolution: each step's own outputs, together with those of the step before. A convolution
    that leaves out its first outputs (with one step of lookahead) does so at the begin of the stream."""
    conv: nn.ConvTranspose1d = module.conv
    stride = conv.stride[0]
    overlap = conv.kernel_size[0] - stride
    assert overlap in (0, stride)
    assert module.left_pad in (0, stride)

    def apply(x: torch.Tensor, run: _Pass) -> torch.Tensor:
        steps = x.shape[2]
        if overlap:
            x = torch.cat((run.take(x, x.shape[1], 1), x), 2)
            run.keep(x[:, :, -1:])
        begin = overlap + (module.left_pad if run.fresh else 0)
        y: torch.Tensor = conv(x)[..., begin : overlap + steps * stride]
        return y

    return apply
