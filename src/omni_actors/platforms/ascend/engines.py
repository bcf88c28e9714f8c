"""The engines of a worker on an NPU: ours, over weights in the NPU's layouts and a cache in blocks of its size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from omni_actors.platforms.ascend.attention import BLOCK
from omni_actors.platforms.ascend.weights import lay_out
from omni_actors.platforms.runtime.modules import modules_of
from omni_actors.protocol.frames import Hello
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter
from omni_actors.worker.engines.autoregressive.options import EngineOptions
from omni_actors.worker.engines.oneshot import GenerationEngine

if TYPE_CHECKING:
    from omni_actors.platforms.ascend.runtime import AscendRuntime

log = logging.getLogger(__name__)


class AscendAutoregressiveEngine(AutoregressiveEngine):
    """The autoregressive engine on an NPU. Blocks of the cache have at least the 128 tokens recommended by CANN's
    attention, in the same memory; transformers' own modules get weights in the NZ layout."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = in_large_blocks(self.options)

    def attach(self, adapter: AutoregressiveAdapter) -> None:
        prepare(self.hello, adapter)
        super().attach(adapter)


class AscendGenerationEngine(GenerationEngine):
    """The generation engine on an NPU. Vocoders, encoders and recognisers run as modules: the weights of their products
    and convolutions get the NPU's own layouts."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        info = super().load(progress)
        progress("laying out the weights", None)
        prepare(self.hello, self._adapter)
        return info


def in_large_blocks(options: EngineOptions) -> EngineOptions:
    """The same tokens in blocks of 128, where blocks were to be smaller."""
    if options.block_size >= BLOCK:
        return options
    blocks = options.kv_blocks
    log.info("blocks of the KV cache have %d tokens, not %d: CANN's attention wants that", BLOCK, options.block_size)
    return replace(
        options,
        block_size=BLOCK,
        kv_blocks=None if blocks is None else -(-blocks * options.block_size // BLOCK),
    )


def prepare(hello: Hello, adapter: Any) -> None:
    """Lay out the weights of the modules that the adapter holds, where the platform's options say so."""
    runtime = cast("AscendRuntime", runtime_of(hello))
    if runtime.nz_weights:
        log.info("%d weights are laid out for the matrix unit", lay_out(modules_of(adapter)))
