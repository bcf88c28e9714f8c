"""The kernels of a platform, compared with what torch computes on the processor in float64 from the same rounded
inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F

from omni_actors.platforms.runtime import kernels as plain
from omni_actors.platforms.runtime.kernels import CacheLayout, Kernels
from omni_actors.platforms.testing.checking import Skip, expect

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float64: 1e-9}
"""Largest error relative to the largest value, by the dtype of the computation."""

KV_HEADS, HEADS, HEAD_DIM = 2, 6, 64


class KernelChecks:
    """The checks of the kernels: one method per kernel, for every dtype of the platform."""

    def __init__(self, runtime: Any, dtypes: list[str]) -> None:
        self.runtime = runtime
        self.device: torch.device = runtime.torch_device
        self.dtypes = [getattr(torch, name) for name in dtypes if name in ("float32", "float16", "bfloat16")]
        self.source = torch.Generator().manual_seed(7)

    def checks(self) -> dict[str, Callable[[], None]]:
        names = (
            "chosen",
            "linear",
            "experts",
            "zeros",
            "greatest",
            "sine",
            "limits",
            "paged_decode",
            "prompt_attention",
        )
        return {f"kernels_{name}": getattr(self, name) for name in names}

    def chosen(self) -> None:
        found = self.runtime.kernels
        expect(isinstance(found, Kernels), f"kernels is a {type(found).__name__}, not Kernels")
        again = self.runtime.kernels
        differing = [item.name for item in fields(Kernels) if getattr(found, item.name) != getattr(again, item.name)]
        expect(not differing, f"kernels gives another {differing} at each call")

    def linear(self) -> None:
        for dtype in self.dtypes:
            for rows, width, out in ((1, 48, 96), (5, 512, 384), (33, 256, 512)):
                x, weight, bias = self._random(dtype, (rows, width), (out, width), (out,))
                for given in (None, bias):
                    made = self.runtime.kernels.linear(
                        self._there(weight), None if given is None else self._there(given)
                    )
                    wanted = F.linear(x.double(), weight.double(), None if given is None else given.double())
                    self._close(made(self._there(x)), wanted, dtype, f"linear {width} → {out} of {rows} rows")

    def experts(self) -> None:
        count, width, inner = 4, 64, 48
        for dtype in self.dtypes:
            for shares in ((3, 0, 5, 1), (0, 0, 0, 8)):
                counts = torch.tensor(shares)
                rows, gate_up, down = self._random(
                    dtype, (sum(shares), width), (count, 2 * inner, width), (count, width, inner)
                )
                given = (rows, counts, gate_up, down)
                found = self.runtime.kernels.experts(*map(self._there, given))
                wanted = plain.experts(rows.double(), counts, gate_up.double(), down.double())
                self._close(found, wanted, dtype, f"experts with {list(shares)} rows each", steps=3)

    def zeros(self) -> None:
        for dtype in self.dtypes:
            found = self.runtime.kernels.zeros((3, 5, 7), dtype, self.device)
            expect(found.shape == (3, 5, 7) and found.dtype is dtype, "zeros gives another shape or dtype")
            expect(found.device.type == self.device.type, f"zeros lie on {found.device}, not on {self.device}")
            expect(not bool(found.cpu().any()), "zeros are not zero")
            found[1] = 1
            expect(float(found.float().sum().cpu()) == 35, "zeros cannot be written")

    def greatest(self) -> None:
        values = torch.randn(3, 500, generator=self.source)
        found = self.runtime.kernels.greatest(self._there(values), 20).cpu()
        expect(
            torch.equal(found, values.topk(20).values), "greatest gives others than the greatest, in descending order"
        )

    def sine(self) -> None:
        values = torch.randn(4, 300, generator=self.source) * 3
        there = self._there(values.clone())
        found = self.runtime.kernels.sine_(there)
        self._close(found, values.double().sin(), torch.float32, "sine_")
        self._close(there, values.double().sin(), torch.float32, "sine_, in place,")

    def limits(self) -> None:
        chosen = self.runtime.kernels
        expect(isinstance(chosen.unfolds(16), bool), "unfolds(channels) is no truth value")
        for dtype in self.dtypes:
            size = chosen.block_size(dtype)
            expect(type(size) is int and size >= 1, f"block_size({dtype}) is {size!r}, not a number of tokens")
        for name in ("fused_decode_limit", "draw_rows"):
            value = getattr(chosen, name)
            expect(type(value) is int and value >= 0, f"{name} is {value!r}, not a number")

    def paged_decode(self) -> None:
        tried = 0
        for dtype in self.dtypes:
            size = self.runtime.kernels.block_size(dtype)
            kernel = self.runtime.kernels.paged_decode(self._layout(dtype))
            if kernel is None:
                continue
            tried += 1
            lengths = torch.tensor([1, size, size + 1, 4 * size + 11], dtype=torch.int32)
            blocks = 5 * len(lengths) + 4
            shape = (blocks, KV_HEADS, size, HEAD_DIM)
            query, keys, values = self._random(dtype, (len(lengths), HEADS, HEAD_DIM), shape, shape)
            order = torch.randperm(blocks, generator=self.source).to(torch.int32)
            table = order[: len(lengths) * 5].view(len(lengths), 5)
            # The layout of a cache: keys and values side by side in each block.
            both = self._there(torch.cat([keys, values], 1))
            halves = both[:, :KV_HEADS], both[:, KV_HEADS:]
            for window, softcap in ((None, None), (20, None), (None, 30.0)):
                scale = HEAD_DIM**-0.5
                found = kernel(
                    self._there(query),
                    *halves,
                    self._there(table),
                    self._there(lengths),
                    scale,
                    window,
                    softcap,
                )
                exact = (query.double(), keys.double(), values.double())
                wanted = plain.paged_decode(*exact, table, lengths, scale, window, softcap)
                self._close(found, wanted, dtype, f"paged_decode (window {window}, softcap {softcap})")
        if not tried:
            raise Skip("it has no kernel for it")

    def prompt_attention(self) -> None:
        tried = 0
        for dtype in self.dtypes:
            kernel = self.runtime.kernels.prompt_attention(self._layout(dtype))
            if kernel is None:
                continue
            tried += 1
            for tokens, length, window in ((40, 40, None), (9, 70, None), (30, 50, 12), (1, 33, None)):
                shape = (KV_HEADS, length, HEAD_DIM)
                query, keys, values = self._random(dtype, (tokens, HEADS, HEAD_DIM), shape, shape)
                found = kernel(*map(self._there, (query, keys, values)), HEAD_DIM**-0.5, window)
                exact = (query.double(), keys.double(), values.double())
                wanted = plain.prompt_attention(*exact, HEAD_DIM**-0.5, window)
                self._close(found, wanted, dtype, f"prompt_attention of {tokens} behind {length - tokens} ({window})")
        if not tried:
            raise Skip("it has no kernel for it")

    def _layout(self, dtype: torch.dtype) -> CacheLayout:
        return CacheLayout(KV_HEADS, HEAD_DIM, self.runtime.kernels.block_size(dtype), dtype)

    def _random(self, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [(torch.randn(shape, generator=self.source) / math.sqrt(shape[-1]) * 3).to(dtype) for shape in shapes]

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def _close(self, found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, what: str, steps: int = 1) -> None:
        expect(found.shape == wanted.shape, f"{what} has the shape {list(found.shape)}, not {list(wanted.shape)}")
        error = float((found.cpu().double() - wanted).abs().max()) if wanted.numel() else 0.0
        scale = float(wanted.abs().max()) if wanted.numel() else 1.0
        most = TOLERANCE[dtype] * steps
        name = str(dtype).removeprefix("torch.")
        expect(error <= most * scale, f"{what} in {name} is off by {error / scale:.1e} of its scale, over {most:.0e}")
