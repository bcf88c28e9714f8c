"""The ranks of one replica as processes: the leader, known to the serving process, and the leader's followers.

The leader (rank 0) starts the others in its own process group, speaks to each over a socketpair, and is the only rank
known to the rest of the deployment. The ranks live and die together:

=======================  ===============================================================================================
a follower ends          the leader's loop sees the end at its socket and reports it; if the leader is blocked in a
                         collective operation, a watchdog thread ends the process after :data:`GRACE_S`
the leader ends          the kernel kills each follower (PDEATHSIG); the launcher kills the whole group
a rank is stuck          the leader gets stuck in the next step, and the serving process kills the group for that
=======================  ===============================================================================================
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from omni_actors.actors.child import CONTROL_VARIABLE
from omni_actors.protocol.codec import frame
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Fatal, Hello, Progress, Ready, Welcome
from omni_actors.protocol.liveness import VARIABLE as LIVENESS_VARIABLE

log = logging.getLogger("omni_actors.worker")

RENDEZVOUS_VARIABLE = "OMNI_ACTORS_RENDEZVOUS"
"""Environment variable with the number of the descriptor at which a replica's ranks find each other: memory that only
these ranks share. It needs no port and leaves no file."""

MAX_FRAME = 1 << 30
"""Limit of a frame between ranks, in bytes. A forward pass may hold the features of a whole prompt."""

GREETING_S = 120.0
"""Seconds from a follower's start to its first frame, the import of torch included."""

SETTLE_S = 0.5
"""Seconds to wait for a dead rank's socket: its connections to the other ranks may close a moment earlier."""

GRACE_S = 2.0
"""Seconds that the leader has to report a follower's death."""


class RankLost(RuntimeError):
    """A rank of the replica has ended, so that no step can be computed any more."""


class RanksDesynchronized(RuntimeError):
    """A step failed after the ranks had begun it: the ranks no longer stand at the same place. Only new processes
    help."""


def own_rendezvous() -> int:
    """Return the descriptor that :data:`RENDEZVOUS_VARIABLE` names, and remove the variable from the environment."""
    return int(os.environ.pop(RENDEZVOUS_VARIABLE))


def receive(sock: socket.socket) -> bytes | None:
    """Return the body of the next frame, or ``None`` at the end of the stream. Waits as long as the socket's timeout
    allows. Raises :class:`TimeoutError`, and :class:`RankLost` for a frame that no version would send."""
    head = _exactly(sock, 4)
    if head is None:
        return None
    length = int.from_bytes(head, "little")
    if not 0 < length <= MAX_FRAME:
        raise RankLost(f"a frame of {length} bytes between ranks")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    try:
        data = sock.recv(count, socket.MSG_WAITALL)
        while 0 < len(data) < count:  # interrupted by a signal, or the socket has a timeout
            more = sock.recv(count - len(data), socket.MSG_WAITALL)
            if not more:
                return None
            data += more
    except ConnectionError:
        return None
    return data or None


@dataclass(slots=True)
class _Follower:
    rank: int
    popen: subprocess.Popen[bytes]
    pidfd: int
    sock: socket.socket


class Followers:
    """The other ranks of this process's replica, made and owned by the leader in its main thread."""

    def __init__(self, hello: Hello, control: socket.socket | None = None) -> None:
        """Start a process for each of ``hello.ranks`` but the first, and greet it. Raises :class:`OSError` when a
        process cannot be started; no process is left then."""
        self.control = control
        """While this process loads, the socket (blocking) on which the serving process is told why this process
        ends."""
        self._hello = hello
        self._followers: list[_Follower] = []
        self._rendezvous = os.memfd_create("omni-rendezvous", os.MFD_CLOEXEC)
        self._closing = os.eventfd(0)
        self._keeper = threading.Thread(target=self._keep, name="keeper of the ranks", daemon=True)
        try:
            for rank in range(1, len(hello.ranks)):
                self._followers.append(self._start(rank))
        except BaseException:
            self.close()
            raise
        self._keeper.start()

    @property
    def rendezvous(self) -> int:
        """The descriptor at which the ranks meet."""
        return self._rendezvous

    @property
    def pids(self) -> list[int]:
        return [follower.popen.pid for follower in self._followers]

    def filenos(self) -> list[int]:
        """Return descriptors that are readable when a follower has ended, or is about to end with a last message."""
        return [follower.sock.fileno() for follower in self._followers]

    def greet(self) -> None:
        """Wait until each follower has answered. Raises :class:`OmniError` for a follower that does not."""
        for follower in self._followers:
            follower.sock.settimeout(GREETING_S)
            try:
                self._next(follower, Welcome)
            except TimeoutError:
                raise self._failed(follower, f"says nothing for {GREETING_S:g} s") from None
            follower.sock.settimeout(None)

    def wait_loaded(self) -> None:
        """Wait until each follower has loaded. The bound is the serving process's start timeout. Raises
        :class:`OmniError` with a follower's own message if it cannot load."""
        for follower in self._followers:
            self._next(follower, Ready)

    def broadcast(self, message: msgspec.Struct) -> None:
        """Send each follower a frame. Raises :class:`RankLost` when a follower is gone."""
        data = frame(message, MAX_FRAME)
        for follower in self._followers:
            try:
                follower.sock.sendall(data)
            except OSError:
                raise RankLost(self._reason_for_end(follower)) from None

    def check(self, readable: Collection[int]) -> None:
        """Raise :class:`RankLost` if one of these descriptors belongs to a follower."""
        for follower in self._followers:
            if follower.sock.fileno() in readable:
                raise RankLost(self._reason_for_end(follower))

    def failure_of(self, error: Exception) -> RankLost | RanksDesynchronized:
        """Return the error for a step that failed here after other ranks had begun it: :class:`RankLost` if a rank has
        ended, which a collective may notice first, else :class:`RanksDesynchronized`."""
        poll = select.poll()
        for follower in self._followers:
            poll.register(follower.sock, select.POLLIN)
        if ended := {fd for fd, _ in poll.poll(SETTLE_S * 1000)}:
            try:
                self.check(ended)
            except RankLost as lost:
                return lost
        return RanksDesynchronized(f"a step that other ranks take part in failed: {error}")

    def close(self) -> None:
        """Kill the followers, which hold no state, and wait for their end."""
        if self._closing < 0:
            return
        os.eventfd_write(self._closing, 1)
        for follower in self._followers:
            follower.popen.kill()
        for follower in self._followers:
            follower.popen.wait()
            follower.sock.close()
        if self._keeper.ident is not None:
            self._keeper.join()
        for follower in self._followers:
            os.close(follower.pidfd)
        os.close(self._closing)
        os.close(self._rendezvous)
        self._closing = -1

    def _start(self, rank: int) -> _Follower:
        place = self._hello.ranks[rank]
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            ours, other = socket.socketpair()
            theirs.callback(other.close)
            undo.callback(ours.close)
            gate, opener = os.pipe()
            theirs.callback(os.close, gate)
            theirs.callback(os.close, opener)
            environment = {
                **os.environ,
                **place.environment,
                CONTROL_VARIABLE: f"{other.fileno()}:{gate}:{os.getpid()}",
                RENDEZVOUS_VARIABLE: str(self._rendezvous),
            }
            environment.pop(LIVENESS_VARIABLE, None)  # the page belongs to the leader
            popen = subprocess.Popen(
                [sys.executable, "-m", "omni_actors.worker"],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=(other.fileno(), gate, self._rendezvous),
            )
            undo.callback(popen.wait)
            undo.callback(popen.kill)
            pidfd = os.pidfd_open(popen.pid)
            os.write(opener, b"!")  # the child is in this process's group, which a warden knows
            ours.sendall(frame(msgspec.structs.replace(self._hello, rank=rank, device=place.device)))
            undo.pop_all()
        return _Follower(rank, popen, pidfd, ours)

    def _next(self, follower: _Follower, wanted: type[msgspec.Struct]) -> None:
        while (body := receive(follower.sock)) is not None:
            message = msgspec.msgpack.decode(body, type=Welcome | Progress | Ready | Fatal)
            if isinstance(message, Fatal):
                raise OmniError(message.error)
            if isinstance(message, Welcome) and message.version != PROTOCOL_VERSION:
                raise self._failed(follower, f"speaks protocol {message.version}")
            if isinstance(message, wanted):
                return
        raise self._failed(follower, "ended before it was ready")

    def _failed(self, follower: _Follower, what: str) -> OmniError:
        return OmniError(ErrorInfo(message=f"rank {follower.rank} (pid {follower.popen.pid}) {what}", status=500))

    def _reason_for_end(self, follower: _Follower) -> str:
        """Return the reason for a follower's end, from its last message if there is one."""
        with contextlib.suppress(TimeoutError, RankLost, msgspec.DecodeError):
            follower.sock.settimeout(SETTLE_S)
            while (body := receive(follower.sock)) is not None:
                message = msgspec.msgpack.decode(body, type=Welcome | Progress | Ready | Fatal)
                if isinstance(message, Fatal):
                    return f"rank {follower.rank}: {message.error.message}"
        return f"rank {follower.rank} (pid {follower.popen.pid}) has ended"

    def _keep(self) -> None:
        """End this process when a follower has ended and the main thread cannot report the end."""
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        for follower in self._followers:
            poll.register(follower.pidfd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll()}
        if self._closing in ended:
            return
        last = select.poll()
        last.register(self._closing, select.POLLIN)
        if not last.poll(GRACE_S * 1000):
            lost = self._reason_for_end(next(it for it in self._followers if it.pidfd in ended))
            log.error("%s while this rank loads or waits in a collective operation", lost)
            if self.control is not None:
                with contextlib.suppress(OSError):
                    self.control.sendall(frame(Fatal(ErrorInfo(message=lost, stage=self._hello.stage))))
            os.kill(os.getpid(), signal.SIGKILL)
