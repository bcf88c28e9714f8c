"""A measurement of a payload's cost from one worker to another: two processes, the transport and nothing else.

The producer is the process that calls :func:`measure`; the consumer is ``python -m omni_actors.connectors.measure``.
Both wait, receive, acknowledge and flush as a worker's loop does. A round trip begins before the payload is put into
its place for the consumer and ends when its acknowledgement has freed that place. The consumer sees the payload as an
engine would, as arrays, and looks at both ends of each; in the first rounds of every size the consumer compares every
byte.
"""

from __future__ import annotations

import secrets
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

from omni_actors.connectors.handshake import SECRET_BYTES
from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.packing import Packed, pack, place
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.tcp import CONNECT_S, TcpLink
from omni_actors.connectors.unix import UnixLink
from omni_actors.protocol.frames import Ack, Chunk
from omni_actors.telemetry.opt_out import quiet_environment

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Sizes of the payloads in bytes, from a frame of codes to a second of a large model's hidden states."""

SHARED, IN_PLACE, TCP = WAYS = ("shared memory", "in place", "tcp")
"""The ways: a payload in an engine's own memory; a payload computed in shared memory, so that only the hand-over
remains; and the first way again, over TCP on loopback."""

_CHECKED = 3
"""Rounds of each size, before the timed rounds, in which the consumer compares every byte."""

_MULTIPLIER = 0x9E3779B97F4A7C15
_LOOPBACK = "127.0.0.1"


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
    """Return the number of rounds: more for short rounds, so that a way takes some seconds, or about one if
    ``quick``."""
    most, total = (1000, 512 << 20) if quick else (5000, 2 << 30)
    return max(12, min(most, total // nbytes))


def measure(way: str, sizes: Sequence[int] = SIZES, *, quick: bool = False) -> list[Measured]:
    """Return round trips of every size by one of :data:`WAYS`. Raises :class:`RuntimeError` when the consumer got wrong
    bytes."""
    found = []
    with _consumer(way) as link:
        producer = _Producer(link, in_place=way == IN_PLACE)
        try:
            for nbytes in sizes:
                producer.begin(nbytes)
                times = [producer.round() for _ in range(rounds_for(nbytes, quick))]
                found.append(_row(way, nbytes, times))
        finally:
            producer.close()
    return found


def memcpy(nbytes: int, *, quick: bool = False) -> Measured:
    """Return copies of the same size between two buffers of this process, for comparison."""
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
    """Return content that differs for every payload and has no period in which a misplaced page could hide."""
    words = np.arange(nbytes // 8, dtype=np.uint64)
    words *= np.uint64(_MULTIPLIER)
    words += np.uint64(seq)
    return words


class _Loop:
    """A worker's loop with one link and no engine."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._epoll = select.epoll()
        self._epoll.register(link.fileno(), select.EPOLLIN)

    def receive(self) -> list[Chunk | Ack]:
        """Write waiting output, then wait for input and return it. Raises :class:`LinkClosed`."""
        link = self._link
        link.flush()
        if link.pending is not link.watched:
            link.watched = link.pending
            self._epoll.modify(link.fileno(), select.EPOLLIN | (select.EPOLLOUT if link.pending else 0))
        if any(event & ~select.EPOLLOUT for _fd, event in self._epoll.poll()):
            return link.receive()
        return []

    def close(self) -> None:
        self._epoll.close()


class _Producer:
    """The producing half of a worker: an arena, and one request on one edge."""

    def __init__(self, link: Link, *, in_place: bool) -> None:
        self._link = link
        self._loop = _Loop(link)
        self._in_place = in_place
        self._arena = Arena()
        self._seq = 0
        self._data: npt.NDArray[np.uint64]

    def begin(self, nbytes: int) -> None:
        for _ in range(_CHECKED):
            self._data = _content(nbytes, self._seq)
            self._hand_over(checked=True)
        self._data = _content(nbytes, 0)

    def round(self) -> float:
        """Send one payload and wait for its acknowledgement; return the seconds."""
        self._data[0] = self._data[-1] = self._seq
        begun = time.perf_counter()
        self._hand_over(checked=False)
        return time.perf_counter() - begun

    def _hand_over(self, *, checked: bool) -> None:
        it = self._put(checked)
        self._link.send_chunk(Chunk(0, 0, self._seq, False, it.kind, it.meta, it.metas, it.data), it.slot)
        self._seq += 1
        acked = 0
        try:
            while acked < self._seq:
                for message in self._loop.receive():
                    assert isinstance(message, Ack)
                    acked = message.upto
        except LinkClosed:
            raise RuntimeError("the consumer has ended: see its output") from None
        if it.slot is not None:
            self._arena.release(it.slot)

    def _put(self, checked: bool) -> Packed:
        data, meta = self._data, {"checked": checked}
        if self._in_place and (placed := place("words", meta, {"data": (data.shape, "uint64")}, self._arena)):
            target = placed.tensors["data"]
            if checked:
                target[:] = data
            target[0], target[-1] = data[0], data[-1]
            return placed.packed(1)
        return pack(Payload("words", meta, {"data": data}), self._arena, 1)

    def close(self) -> None:
        self._loop.close()
        self._arena.close()


@contextmanager
def _consumer(way: str) -> Iterator[Link]:
    """A consumer process and the producer's end of the link to it; the process ends when that end is closed."""
    command = [sys.executable, "-m", "omni_actors.connectors.measure"]
    if way == TCP:
        process = subprocess.Popen(command, env=quiet_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        secret = secrets.token_bytes(SECRET_BYTES)
        with process.stdin, process.stdout:
            process.stdin.write(secret.hex().encode() + b"\n")
            process.stdin.flush()
            address = (_LOOPBACK, int(process.stdout.readline()))
        link: Link = TcpLink.open(0, "consumer", address, secret, Arena())
    else:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())], env=quiet_environment(), pass_fds=[theirs.fileno()]
            )
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


def _accept() -> Link:
    """Return the consumer's end of a link by TCP. The secret comes on a private pipe, the port goes back."""
    listener = Listener(_LOOPBACK)
    listener.expect(0, bytes.fromhex(sys.stdin.readline()))
    print(listener.address[1], flush=True)
    with select.epoll() as epoll:
        epoll.register(listener.fileno(), select.EPOLLIN)
        while not listener.overdue():
            epoll.poll(CONNECT_S)
            for id, sock in listener.serve():
                listener.close()
                return TcpLink(id, "producer", sock, Arena())
    sys.exit("nobody called")


def _consume(link: Link) -> None:
    """Run the consuming half of a worker until the producer is gone."""
    loop = _Loop(link)
    try:
        while True:
            for message in loop.receive():
                assert isinstance(message, Chunk)
                payload = link.payload(message)
                assert payload is not None
                data = payload.tensors["data"]
                if payload.meta["checked"]:
                    np.testing.assert_array_equal(data, _content(data.nbytes, message.seq))
                elif not data[0] == data[-1] == message.seq:
                    raise RuntimeError(f"payload {message.seq} holds {data[0]} and {data[-1]}")
                link.send_ack(Ack(message.key, message.edge, message.seq + 1))
    except LinkClosed:
        return
    finally:
        loop.close()


if __name__ == "__main__":
    _consume(UnixLink(0, "producer", socket.socket(fileno=int(sys.argv[1]))) if len(sys.argv) > 1 else _accept())
