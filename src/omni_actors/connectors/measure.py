"""What a payload costs on its way from one worker to another: two processes, the transport and nothing else.

The producer is the process that calls :func:`measure`; the consumer is ``python -m omni_actors.connectors.measure``.
Both wait, receive, acknowledge and flush as a worker's loop does. A round trip begins before the payload is put where
the consumer can read it and ends when its acknowledgement has freed that place. The consumer sees the payload as an
engine would, as arrays, and looks at both ends of each; in the first rounds of every size it compares every byte.
"""

from __future__ import annotations

import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.packing import pack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Ack, Chunk

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Bytes of the payloads measured, from a frame of codes to a second of a large model's hidden states."""

WAYS = ("shared memory",)

_CHECKED = 3
"""Rounds of each size, before those that are timed, in which the consumer compares every byte."""

_MULTIPLIER = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Measured:
    """Round trips of one size by one way. Times in seconds; ``bandwidth`` in bytes/s counts the payload once."""

    way: str
    nbytes: int
    rounds: int
    p50: float
    p99: float

    @property
    def bandwidth(self) -> float:
        return self.nbytes / self.p50


def rounds_for(nbytes: int, quick: bool) -> int:
    """More where a round is short: the whole run stays within a minute, a quick one within ten seconds."""
    most, total = (1000, 512 << 20) if quick else (5000, 2 << 30)
    return max(12, min(most, total // nbytes))


def measure(way: str, sizes: Sequence[int] = SIZES, *, quick: bool = False) -> list[Measured]:
    """Round trips of every size by one of :data:`WAYS`. Raises :class:`RuntimeError` when the consumer got other bytes
    than were put."""
    found = []
    with _consumer() as link:
        producer = _Producer(link)
        try:
            for nbytes in sizes:
                producer.begin(nbytes)
                times = [producer.round() for _ in range(rounds_for(nbytes, quick))]
                found.append(_row(way, nbytes, times))
        finally:
            producer.close()
    return found


def memcpy(nbytes: int, *, quick: bool = False) -> Measured:
    """Copies of the same size between two buffers of this process, for comparison."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    times = []
    for _ in range(rounds_for(nbytes, quick)):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    return _row("memcpy", nbytes, times)


def _row(way: str, nbytes: int, times: list[float]) -> Measured:
    return Measured(way, nbytes, len(times), statistics.median(times), sorted(times)[int(len(times) * 0.99)])


def _content(nbytes: int, seq: int) -> npt.NDArray[np.uint64]:
    """Different for every payload, without a period that a misplaced page could hide in."""
    words = np.arange(nbytes // 8, dtype=np.uint64)
    words *= np.uint64(_MULTIPLIER)
    words += np.uint64(seq)
    return words


class _Producer:
    """The producing half of a worker: an arena, a link, and one request on one edge."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._arena = Arena()
        self._epoll = select.epoll()
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._seq = 0
        self._data: npt.NDArray[np.uint64]

    def begin(self, nbytes: int) -> None:
        for _ in range(_CHECKED):
            self._data = _content(nbytes, self._seq)
            self._send(checked=True)
        self._data = _content(nbytes, 0)

    def round(self) -> float:
        """One payload there and its acknowledgement back."""
        self._data[0] = self._data[-1] = self._seq
        begun = time.perf_counter()
        self._send(checked=False)
        return time.perf_counter() - begun

    def _send(self, *, checked: bool) -> None:
        it = pack(Payload("bytes", {"checked": checked}, {"data": self._data}), self._arena, 1)
        self._link.send_chunk(Chunk(0, 0, self._seq, False, it.kind, it.meta, it.metas, it.data), it.slot)
        self._seq += 1
        self._link.flush()
        acked = 0
        while acked < self._seq:
            self._epoll.poll()
            try:
                for message in self._link.receive():
                    if type(message) is Ack:
                        acked = message.upto
            except LinkClosed:
                raise RuntimeError("the consumer has ended: see what it said") from None
        if it.slot is not None:
            self._arena.release(it.slot)

    def close(self) -> None:
        self._epoll.close()
        self._arena.close()


@contextmanager
def _consumer() -> Iterator[Link]:
    """A consumer process and the producer's end of the link to it; it ends when that is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "omni_actors.connectors.measure", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    link = UnixLink(0, "consumer", ours)
    try:
        yield link
    finally:
        link.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _consume(link: Link) -> None:
    """The consuming half of a worker, until the producer is gone."""
    epoll = select.epoll()
    epoll.register(link.fileno(), select.EPOLLIN)
    with epoll:
        while True:
            epoll.poll()
            try:
                messages = link.receive()
            except LinkClosed:
                return
            for message in messages:
                assert type(message) is Chunk
                payload = link.payload(message)
                assert payload is not None
                data = payload.tensors["data"]
                if payload.meta["checked"]:
                    np.testing.assert_array_equal(data, _content(data.nbytes, message.seq))
                elif not data[0] == data[-1] == message.seq:
                    raise RuntimeError(f"payload {message.seq} holds {data[0]} and {data[-1]}")
                del payload, data
                link.send_ack(Ack(message.key, message.edge, message.seq + 1))
            link.flush()


if __name__ == "__main__":
    _consume(UnixLink(0, "producer", socket.socket(fileno=int(sys.argv[1]))))
