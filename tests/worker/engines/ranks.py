"""The ranks of one engine as threads of the test's own process: the same frames and the same network, where real ranks
are processes that torch.distributed joins (see ``test_ranks``)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import msgspec
import torch

from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.codec import frame
from omni_actors.worker.collectives import Group
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter
from omni_actors.worker.engines.autoregressive.ranks import execute
from omni_actors.worker.ranks import MAX_FRAME, Followers

PATIENCE_S = 20.0


class Meeting:
    """Where so many threads meet, each with a tensor."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=PATIENCE_S)
        self._brought: list[torch.Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._brought[rank] = x.clone()
        self._barrier.wait()
        found = list(self._brought)
        self._barrier.wait()
        return found

    def end(self) -> None:
        self._barrier.abort()


class ThreadGroup(Group):
    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, x)).sum(0)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._meeting.exchange(self.rank, x), 1)


class ThreadFollowers:
    """What an engine needs of :class:`Followers`."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets

    def broadcast(self, message: msgspec.Struct) -> None:
        for sock in self._sockets:
            sock.sendall(frame(message, MAX_FRAME))


@contextmanager
def in_threads(
    make: Callable[[], AutoregressiveAdapter], size: int, kernels: Kernels
) -> Iterator[tuple[AutoregressiveAdapter, Followers]]:
    """The leader's adapter, loaded, and those that follow it. Raises what a follower raised."""
    meeting = Meeting(size)
    adapters = [make() for _ in range(size)]
    for rank, adapter in enumerate(adapters):
        adapter.group = ThreadGroup(rank, meeting)
        adapter.load(lambda text, fraction: None)
    raised: list[Exception] = []
    pairs = [socket.socketpair() for _ in range(size - 1)]

    def run(adapter: AutoregressiveAdapter, control: socket.socket) -> None:
        try:
            execute(adapter.decoder, kernels, control)
        except Exception as error:
            raised.append(error)
            meeting.end()

    threads = [
        threading.Thread(target=run, args=(adapter, theirs), daemon=True)
        for adapter, (_, theirs) in zip(adapters[1:], pairs, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield adapters[0], cast(Followers, ThreadFollowers([ours for ours, _ in pairs]))
    finally:
        for ours, _ in pairs:
            ours.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        for _, theirs in pairs:
            theirs.close()
    if raised:
        raise raised[0]
