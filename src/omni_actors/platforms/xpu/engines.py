"""The engines of a worker on an Intel GPU: ours, within what the device's driver allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from omni_actors.platforms.runtime.modules import modules_of
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter
from omni_actors.worker.engines.autoregressive.decoder import KVShape
from omni_actors.worker.engines.oneshot import GenerationEngine

if TYPE_CHECKING:
    from omni_actors.platforms.xpu.runtime import XpuRuntime

log = logging.getLogger(__name__)


class XpuAutoregressiveEngine(AutoregressiveEngine):
    """The autoregressive engine on an Intel GPU. A layer of the cache is one allocation, and some drivers refuse
    allocations above 4 GiB by default: ``platforms.xpu.allocation_mib``, if set, limits the cache's size per layer."""

    def attach(self, adapter: AutoregressiveAdapter) -> None:
        shape, options = adapter.decoder.kv_shape, self.options
        limit = int(runtime_of(self.hello).options.get("allocation_mib") or 0) << 20
        wanted = options.blocks(shape.token_bytes)
        most = blocks_within(limit, shape, options.block_size)
        if limit and wanted > most:
            log.warning(
                "the KV cache has %d blocks, not %d: platforms.xpu.allocation_mib allows a layer no more",
                most,
                wanted,
            )
            self.options = replace(options, kv_blocks=most)
        super().attach(adapter)


class XpuGenerationEngine(GenerationEngine):
    """The generation engine on an Intel GPU. If installed, intel-extension-for-pytorch prepares the modules: the
    extension folds operations into convolutions and packs weights."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        info = super().load(progress)
        extension = cast("XpuRuntime", runtime_of(self.hello)).extension
        if extension is not None:
            progress("preparing the modules", None)
            for module in modules_of(self._adapter):
                extension.optimize(module.eval(), inplace=True)
        return info


def blocks_within(limit: int, shape: KVShape, block_size: int) -> int:
    """Blocks of a cache whose layers take at most so many bytes each; one more is there for padding."""
    layer_block = 2 * shape.kv_heads * block_size * shape.head_dim * int(shape.dtype.itemsize)
    return max(1, limit // layer_block - 1)
