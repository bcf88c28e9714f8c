"""The blocks of prompts in the cache of a worker's vLLM."""

from __future__ import annotations

from typing import Any


class CachedBlocks:
    """A receiver of vLLM's KV events, in place of a publisher.

    It keeps the hashes of the cached blocks, in the order of their arrival.
    """

    def __init__(self) -> None:
        self._hashes: dict[Any, None] = {}
        self.stored = 0
        self.removed = 0

    def publish(self, batch: Any) -> None:
        """Take the events of one step."""
        for event in batch.events:
            kind = type(event).__name__
            if kind == "BlockStored":
                self.stored += len(event.block_hashes)
                self._hashes |= dict.fromkeys(event.block_hashes)
            elif kind == "BlockRemoved":
                self.removed += len(event.block_hashes)
                for it in event.block_hashes:
                    self._hashes.pop(it, None)
            else:  # AllBlocksCleared
                self.removed += len(self._hashes)
                self._hashes.clear()

    def hashes(self) -> list[str]:
        """Return the hashes in hexadecimal, oldest first."""
        return [it.hex() if isinstance(it, bytes) else f"{it & (1 << 64) - 1:016x}" for it in self._hashes]

    def counters(self) -> dict[str, float]:
        return {
            "kv_blocks_cached": len(self._hashes),
            "kv_blocks_stored_total": self.stored,
            "kv_blocks_removed_total": self.removed,
        }

    def shutdown(self) -> None:
        """vLLM asks it of a publisher."""

    def get_publisher_config(self) -> None:
        """vLLM asks it of a publisher."""
