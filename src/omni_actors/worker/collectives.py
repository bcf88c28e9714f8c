"""Collective operations of the ranks of one replica, by torch.distributed."""

from __future__ import annotations

from datetime import timedelta

import torch

from omni_actors.protocol.frames import Hello

TIMEOUT = timedelta(hours=1)
"""Bound of one collective operation. The serving process ends a stuck replica long before."""


class Group:
    """The ranks that share a network's layers. This class is the group of a network that one process has alone: its
    operations change nothing."""

    rank: int = 0
    size: int = 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' ``x`` (contiguous), the same at each rank. ``x`` may be overwritten."""
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return all ranks' ``x`` [rows, n] side by side at rank 0; the result at other ranks is undefined."""
        return x

    def close(self) -> None:
        """Leave the group."""


ALONE = Group()


class ProcessGroup(Group):
    """The ranks of a replica. A process has one such group: torch.distributed's default group."""

    def __init__(self, hello: Hello, rendezvous: int) -> None:
        """Meet the other ranks at the descriptor ``rendezvous``: every rank must call this, and waits for all. Raises
        the exceptions of torch.distributed."""
        from torch import distributed

        self._distributed = distributed
        # Some libraries of devices (HCCL) have no gather, and others build it from one message per rank.
        self._to_one = hello.collectives == "gloo"
        self.rank, self.size = hello.rank, len(hello.ranks)
        store = distributed.FileStore(f"/proc/self/fd/{rendezvous}", self.size)
        distributed.init_process_group(
            hello.collectives, store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self._distributed.all_reduce(x)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        if not x.numel():
            return x.new_empty(x.shape[0], x.shape[1] * self.size)
        x = x.contiguous()
        mine = self.rank == 0 or not self._to_one
        parts = [torch.empty_like(x) for _ in range(self.size)] if mine else None
        if self._to_one:
            self._distributed.gather(x, parts)
        else:
            self._distributed.all_gather(parts, x)
        return torch.cat(parts, 1) if parts is not None and self.rank == 0 else x

    def close(self) -> None:
        self._distributed.destroy_process_group()
