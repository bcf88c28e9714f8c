"""The part of an adapter that gives the pictures of a diffusers pipeline their accelerations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from omni_actors.models.diffusion.acceleration.acceleration import Acceleration
from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout
from omni_actors.models.diffusion.components import modules_of
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engines.diffusion.adapter import DENOISE, DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor
from omni_actors.worker.engines.diffusion.options import OPTIONS


class AcceleratedAdapter(DiffusionAdapter):
    """An adapter over the components of one diffusers pipeline, ``self.pipe``, with the stage's accelerations.

    A subclass loads the pipeline inside ``self.runtime.host()`` onto ``self.runtime.host_device``, calls
    :meth:`accelerate` before its first forward, and runs each forward inside ``self.acceleration.forward``.
    """

    accelerated = True
    denoiser: ClassVar[str] = "transformer"
    """Name of the component that denoises."""
    blocks: ClassVar[BlockLayout | None] = None
    """How the denoiser calls its blocks, for step caches; ``None`` if no cache can skip them."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options: Mapping[str, Any] = filled(OPTIONS, hello.options)
        self.dtype: torch.dtype = getattr(torch, hello.dtype)
        self.device = torch.device(hello.device)
        self.runtime = runtime_of(hello)
        self.acceleration = Acceleration(self.options, lambda: self.compiling())
        self.pipe: Any

    def accelerate(self) -> None:
        """Put the loaded pipeline on the device, with the stage's accelerations."""
        self.acceleration.place(modules_of(self.pipe), self.runtime)
        if DENOISE in self.parts:
            self.acceleration.install(self.model, self.denoiser, type(self.pipe), self.dtype, self.blocks)

    @property
    def model(self) -> Any:
        """The component that denoises."""
        return getattr(self.pipe, self.denoiser)

    def reserved_bytes(self) -> int:
        return self.acceleration.reserved_bytes

    def query(self, what: str, args: Mapping[str, Any]) -> Any:
        if DENOISE not in self.parts and what in ("load_lora", "unload_lora"):
            return {
                "name": args.get("name"),
                "bytes": 0,
                "layers": 0,
            }  # adapters change the denoiser, which is elsewhere
        return self.acceleration.query(what, args)

    def counters(self) -> dict[str, float]:
        return self.acceleration.counters()

    def close(self, cursor: Cursor) -> None:
        self.acceleration.close(cursor)
