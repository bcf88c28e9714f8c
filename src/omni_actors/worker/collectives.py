"""What the ranks of one replica compute together, by torch.distributed."""

from __future__ import annotations

from datetime import timedelta

import torch

from omni_actors.protocol.frames import Hello

TIMEOUT = timedelta(hours=1)
"""Of one collective. The serving process ends a replica that stands still long before."""


class Group:
    """The ranks that share out a network's layers. This one is of a network that one process has alone: it changes
    nothing."""

    rank: int = 0
    size: int = 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x`` (contiguous), which is given away: the same at each of them."""
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """At rank 0 all ranks' ``x`` [rows, n] side by side; what the others get means nothing."""
        return x

    def close(self) -> None:
        """Leave."""


ALONE = Group()


class ProcessGroup(Group):
    """A replica's ranks. There is one in a process: torch.distributed's default group."""

    def __init__(self, hello: Hello, rendezvous: int) -> None:
        """Meet the others at the descriptor ``rendezvous``: every rank has to, and waits for all. Raises what
        torch.distributed does."""
        from torch import distributed

        self._distributed = distributed
        # Of devices' libraries some (HCCL) know no gather, and others make one of a message for each rank.
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
