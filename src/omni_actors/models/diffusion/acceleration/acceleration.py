"""The accelerations of one loaded diffusion model: step caches and LoRA adapters, for each picture its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from omni_actors.models.diffusion.acceleration.compiled import CompiledBlocks
from omni_actors.models.diffusion.acceleration.forward_rows import ForwardRows
from omni_actors.models.diffusion.acceleration.lora import Loras
from omni_actors.models.diffusion.acceleration.lora.layers import STATE as LORAS
from omni_actors.models.diffusion.acceleration.lora.registry import parsed
from omni_actors.models.diffusion.acceleration.offload import NONE, Offload
from omni_actors.models.diffusion.acceleration.step_cache import BlockLayout, StepCache
from omni_actors.models.diffusion.acceleration.step_cache.cache import STATE as STEP_CACHE
from omni_actors.models.diffusion.acceleration.step_cache.memory import CursorCache
from omni_actors.models.diffusion.rows import Row
from omni_actors.platforms.runtime import DeviceRuntime
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engines.diffusion.cursor import Cursor, Footprint

TEXT_TOKENS = 512
"""Tokens of a prompt, for estimates of memory."""

WIDEST = 5
"""The widest outputs of a block's layers in widths of a token: a feed-forward layer's, and one more."""


class Acceleration:
    """The accelerations of one loaded model, for each picture its own.

    Args:
        options: The stage's options.
        compiling: The context in which the worker may take the time of a compilation.
    """

    def __init__(self, options: Mapping[str, Any], compiling: Callable[[], AbstractContextManager[object]]) -> None:
        self._options = options
        self._compiled = CompiledBlocks(compiling)
        self._rows = ForwardRows()
        self.cache = StepCache(self._rows, options)
        self.loras = Loras(self._rows, options["lora_bytes"])
        self.offload: Offload | None = None
        """The offload of the pipeline's weights, if there is one."""
        self._token_bytes = 0
        self._loras_at_start = 0

    def place(self, components: Mapping[str, nn.Module], runtime: DeviceRuntime) -> None:
        """Put the weights of a pipeline, which was loaded into the host's memory, on the device: all of them, or in
        turn if the stage offloads."""
        if self._options["offload"] != NONE:
            self.offload = Offload(self._options["offload"], components, runtime)
            return
        with runtime.host():
            for component in components.values():
                component._apply(runtime.onload)

    def install(
        self, model: nn.Module, component: str, pipeline: type, dtype: torch.dtype, layout: BlockLayout | None
    ) -> None:
        """Put the accelerations into a loaded denoiser, and load the stage's LoRA adapters.

        Args:
            model: The denoiser.
            component: Its name in the pipeline.
            pipeline: diffusers' pipeline class.
            dtype: The number type that the denoiser computes in.
            layout: How the denoiser calls its blocks; ``None`` for one whose blocks no step cache can skip. Its count
                is filled in.
        """
        self._token_bytes = _width(model) * dtype.itemsize
        self.loras.install(model, component, pipeline, dtype)
        lists = [
            found
            for name in (() if layout is None else layout.lists)
            if isinstance(found := getattr(model, name, None), nn.ModuleList)
        ]
        if self._options["compile"]:
            blocks = [block for found in lists for block in found]
            repeated = getattr(model, "_repeated_blocks", None) or ()
            self._compiled.install(blocks or [it for it in model.modules() if type(it).__name__ in repeated])
        self.cache.install(lists, replace(layout or BlockLayout(), count=sum(map(len, lists))))
        for name, path in parsed(self._options["loras"]).items():
            self.loras.load(name, path)
        self._loras_at_start = self.loras.nbytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the device's memory beside what was taken after loading: of adapters that were loaded since, and of
        weights that come in turn."""
        offload = 0 if self.offload is None else self.offload.absent_bytes
        return max(0, self.loras.nbytes - self._loras_at_start) + offload

    # ---- requests

    def open(self, image: ImageGeneration, cursors: Sequence[Cursor]) -> None:
        """Give the cursors of a request its step cache and its adapters, and add them to their footprints.

        Args:
            image: The request's section.
            cursors: The request's cursors, new.

        Raises:
            OmniError: The model cannot do what the request asks for; status 400, with ``param``.
        """
        settings, chosen = self.cache.open(image.cache), self.loras.chosen(image.loras)
        for cursor in cursors:
            if settings.on:
                cursor.state[STEP_CACHE] = CursorCache(settings)
                # The last full step's residuals of the first and of the other blocks, and this step's beside them.
                text = TEXT_TOKENS if settings.last_blocks else 0
                held = 2 * (cursor.weight + text) * self._token_bytes
                cursor.footprint = _more(cursor.footprint, state=held, step=held)
            if chosen:
                cursor.state[LORAS] = chosen
                cursor.footprint = _more(cursor.footprint, step=WIDEST * cursor.weight * self._token_bytes)

    @contextmanager
    def forward(self, rows: Sequence[Row]) -> Iterator[None]:
        """Run the block of code, which calls the denoiser once with these rows in order, with their accelerations."""
        with self._rows.under_way(rows), self._compiled.forward(), self.cache.forward():
            try:
                yield
            finally:
                self.loras.layers.release()

    def commit(self, cursor: Cursor) -> None:
        """Take what the last forward noted into a cursor whose step is done."""
        self.cache.commit(cursor)

    def close(self, cursor: Cursor) -> None:
        """Drop what is held for a cursor."""
        self.cache.forget(cursor)
        cursor.state.pop(LORAS, None)

    # ---- operators

    def query(self, what: str, args: Mapping[str, Any]) -> Any:
        """Answer ``load_lora`` (``name``, ``path``), ``unload_lora`` (``name``) and ``loras``. Raises 400 for what is
        wrong with the arguments, and for another query."""
        if what == "loras":
            return self.loras.listed()
        if what == "load_lora" and self._options["compile"]:
            raise invalid_request("Compiled blocks add no terms of LoRA adapters: this stage has 'compile' on.", "name")
        if what == "load_lora":
            return self.loras.load(_text(args, "name"), _text(args, "path"))
        if what == "unload_lora":
            return self.loras.unload(_text(args, "name"))
        raise invalid_request(f"unknown query {what!r}")

    def counters(self) -> dict[str, float]:
        """Return counters of the step caches and of offload, and gauges of the adapters."""
        offload = {} if self.offload is None else self.offload.counters()
        return {**self.cache.counters(), **self.loras.counters(), **self._compiled.counters(), **offload}


def _width(model: Any) -> int:
    """Return the width of a denoiser's tokens between two blocks, by its configuration; a guess for unusual ones."""
    heads, width = (getattr(model.config, name, None) for name in ("num_attention_heads", "attention_head_dim"))
    return heads * width if isinstance(heads, int) and isinstance(width, int) else 1024


def _more(footprint: Footprint, *, state: int = 0, step: int = 0) -> Footprint:
    return replace(footprint, state=footprint.state + state, step=footprint.step + step)


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise invalid_request(f"'{name}' is needed.", name)
    return value
