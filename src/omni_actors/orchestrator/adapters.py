"""LoRA adapters that an operator loads and unloads while the deployment runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import trio

from omni_actors.pipelines.plan import StagePlan
from omni_actors.protocol.errors import OmniError, invalid_request, not_found, stage_unavailable
from omni_actors.protocol.states import ReplicaState
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")

LOAD_S = 300.0
"""Longest wait for a worker that loads an adapter: a large file on a slow disk."""

OPTION = "lora_bytes"
"""The option of the stages that take adapters while they run."""

_GONE = frozenset({"stage_died", "stage_replaced", "stage_unavailable"})
"""Codes of workers that are gone: the workers that follow get the adapters when they are ready."""


class LoadedAdapters:
    """The LoRA adapters of a running deployment that are not in its plan.

    Every replica that takes adapters has all of them. A worker that starts later gets them before its first request: it
    handles frames in their order.

    Args:
        pools: The pools of the deployment's stages, by name.
    """

    def __init__(self, pools: Mapping[str, StagePool]) -> None:
        self._pools = [pool for pool in pools.values() if takes_adapters(pool.stage)]
        self._paths: dict[str, str] = {}
        self._commands = trio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the adapters, in the order in which they were loaded."""
        return tuple(self._paths)

    async def load(self, name: str, path: str, *, replace: bool = False) -> None:
        """Load an adapter into every replica that takes adapters.

        Args:
            name: The adapter's name, by which requests choose it.
            path: A file or a folder with the weights.
            replace: Whether an adapter of this name may be loaded already, and is replaced.

        Raises:
            OmniError: 400 for a deployment without such replicas, for a name that is taken, and for weights that do not
                fit the model; 503 without a live worker. Then every worker has the adapters that it had before.
        """
        if not self._pools:
            raise invalid_request("No stage of this model takes LoRA adapters while it runs.", "lora_name")
        async with self._commands:
            before = self._paths.get(name)
            if before is not None and not replace:
                raise invalid_request(f"The LoRA adapter '{name}' is loaded already.", "lora_name", "invalid_value")
            self._paths[name] = path
            try:
                if before is not None:
                    await self._ask_all("unload_lora", {"name": name})
                if not await self._ask_all("load_lora", {"name": name, "path": path}):
                    raise stage_unavailable(self._pools[0].stage.name)
            except BaseException:  # a cancelled command, too, leaves every worker as it was
                self._undo(name, before)
                raise
        log.info("loaded the LoRA adapter %r of %s", name, path)

    async def unload(self, name: str) -> None:
        """Unload an adapter from every replica. Raises 404 for an adapter that was not loaded by :meth:`load`."""
        async with self._commands:
            if name not in self._paths:
                has = ", ".join(self._paths) or "none"
                message = f"The LoRA adapter '{name}' was not loaded while the server ran; those that were: {has}."
                raise not_found(message, "lora_name", "lora_not_found")
            del self._paths[name]
            await self._ask_all("unload_lora", {"name": name})
        log.info("unloaded the LoRA adapter %r", name)

    def restore(self, replica: StageReplica) -> None:
        """Give a worker that has become ready the adapters. Its requests follow in the same channel."""
        if takes_adapters(replica.stage):
            for name, path in self._paths.items():
                replica.notify("load_lora", {"name": name, "path": path})

    def _undo(self, name: str, before: str | None) -> None:
        """Let every worker forget an adapter that could not be loaded everywhere, and have the one before again."""
        del self._paths[name]
        if before is not None:
            self._paths[name] = before
        for replica in self._ready():
            replica.notify("unload_lora", {"name": name})
            if before is not None:
                replica.notify("load_lora", {"name": name, "path": before})

    def _ready(self) -> list[StageReplica]:
        replicas = [replica for pool in self._pools for replica in pool.replicas]
        return [replica for replica in replicas if replica.state is ReplicaState.READY]

    async def _ask_all(self, what: str, args: dict[str, Any]) -> int:
        """Send a query to every live worker, and return how many answered. Raises the first refusal."""
        refused: list[OmniError] = []
        answered = 0

        async def ask(replica: StageReplica) -> None:
            nonlocal answered
            try:
                await replica.query(what, args, timeout_s=LOAD_S)
            except OmniError as error:
                if error.info.code not in _GONE:
                    refused.append(error)
            else:
                answered += 1

        async with trio.open_nursery() as nursery:
            for replica in self._ready():
                nursery.start_soon(ask, replica)
        if refused:
            raise refused[0]
        return answered


def takes_adapters(stage: StagePlan) -> bool:
    """Return whether the workers of a stage take LoRA adapters while they run."""
    return OPTION in stage.options and "denoise" in (stage.options.get("parts") or "denoise")
