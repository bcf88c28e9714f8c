"""A worker's listener: connections come in, and go out as authenticated sockets for the worker's links."""

from __future__ import annotations

import errno
import ipaddress
import logging
import select
import socket
import time
from dataclasses import dataclass, field

from omni_actors.connectors.handshake import GREETING_BYTES, PROOF_BYTES, Accepting, Refused, link_of
from omni_actors.connectors.tcp import CONNECT_S, configure
from omni_actors.protocol.frames import PROTOCOL_VERSION

log = logging.getLogger("omni_actors.connectors")

MAX_CALLERS = 64
"""Connections that have not authenticated yet; at the limit the oldest of them makes room for a new one."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection that is not a link yet. Bytes from the caller wait in ``said`` until a message is complete."""

    sock: socket.socket
    deadline: float
    said: bytearray = field(default_factory=bytearray)
    link: int | None = None
    accepting: Accepting | None = None


@dataclass(frozen=True, slots=True)
class _Expected:
    secret: bytes = field(repr=False)
    deadline: float


class Listener:
    """Accepts expected links, from callers that authenticate, and nothing else.

    No method waits: the listener's descriptor is readable when :meth:`serve` has something to do, and :attr:`deadline`
    says when :meth:`overdue` has. A caller that is wrong, or silent for :data:`CONNECT_S`, is dropped and keeps no
    other caller away. A caller may come before its link is expected: the two ends hear of the link on separate
    channels.
    """

    def __init__(self, host: str) -> None:
        """Listen on an address of this machine, at a port that the kernel chooses."""
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        self._sock = socket.create_server((host, 0), family=family, backlog=MAX_CALLERS)
        self._sock.setblocking(False)
        self.address: tuple[str, int] = (host, int(self._sock.getsockname()[1]))
        self._epoll = select.epoll()
        self._epoll.register(self._sock.fileno(), select.EPOLLIN)
        self._callers: dict[int, _Caller] = {}
        self._expected: dict[int, _Expected] = {}

    def fileno(self) -> int:
        return self._epoll.fileno()

    def expect(self, link: int, secret: bytes) -> None:
        """Expect a caller for link ``link``; the caller may be here already."""
        self._expected[link] = _Expected(secret, time.monotonic() + CONNECT_S)
        for caller in list(self._callers.values()):
            if caller.link == link:
                self._challenge(caller)

    def expects(self, link: int) -> bool:
        return link in self._expected

    @property
    def deadline(self) -> float | None:
        """The time of the next call of :meth:`overdue`, by :func:`time.monotonic`."""
        times = [it.deadline for it in self._callers.values()]
        times += [it.deadline for it in self._expected.values()]
        return min(times, default=None)

    def serve(self) -> list[tuple[int, socket.socket]]:
        """Accept and read, and return the links that have authenticated, with their sockets."""
        made = []
        for fd, _event in self._epoll.poll(0):
            if fd == self._sock.fileno():
                self._accept()
            elif (caller := self._callers.get(fd)) is not None and self._hear(caller):
                assert caller.link is not None
                self._forget(caller)
                del self._expected[caller.link]
                for other in [it for it in self._callers.values() if it.link == caller.link]:
                    self._drop(other, "the link is taken")
                made.append((caller.link, caller.sock))
        return made

    def overdue(self) -> list[int]:
        """Drop connections and links that have waited too long, and return the links for which nobody called."""
        now = time.monotonic()
        for caller in [it for it in self._callers.values() if it.deadline <= now]:
            self._drop(caller, "silent for too long")
        late = [link for link, it in self._expected.items() if it.deadline <= now]
        for link in late:
            del self._expected[link]
            for caller in [it for it in self._callers.values() if it.link == link]:
                self._drop(caller, "the link was given up")
        return late

    def close(self) -> None:
        for caller in list(self._callers.values()):
            self._forget(caller)
            caller.sock.close()
        self._epoll.close()
        self._sock.close()

    # ---- inside

    def _accept(self) -> None:
        try:
            sock, _address = self._sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._callers:
                self._drop(next(iter(self._callers.values())), "no file descriptor is free")
            return  # other errors: the caller is gone again
        configure(sock)
        if len(self._callers) >= MAX_CALLERS:
            self._drop(next(iter(self._callers.values())), "too many callers wait")
        self._callers[sock.fileno()] = _Caller(sock, time.monotonic() + CONNECT_S)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _hear(self, caller: _Caller) -> bool:
        """Read a caller's bytes, never beyond the due message, and return whether the caller has authenticated."""
        if caller.link is not None and caller.accepting is None:
            self._drop(caller, "it hung up")  # no other event is watched while a caller waits
            return False
        wanted = GREETING_BYTES if caller.link is None else PROOF_BYTES
        try:
            data = caller.sock.recv(wanted - len(caller.said))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._drop(caller, str(error))
            return False
        if not data:
            self._drop(caller, "it hung up")
            return False
        caller.said += data
        if len(caller.said) < wanted:
            return False
        try:
            if caller.link is None:
                caller.link = link_of(bytes(caller.said), PROTOCOL_VERSION)
                if caller.link in self._expected:
                    self._challenge(caller)
                else:  # the caller waits until the link is expected
                    self._epoll.modify(caller.sock.fileno(), 0)
                return False
            assert caller.accepting is not None
            caller.accepting.check(bytes(caller.said))
        except Refused as refused:
            # A caller that names no link is a stranger: a port scanner would fill the log.
            level = logging.DEBUG if caller.link is None else logging.WARNING
            log.log(level, "a connection for link %s is refused: %s", caller.link, refused)
            self._drop(caller, "refused")
            return False
        return True

    def _challenge(self, caller: _Caller) -> None:
        if caller.accepting is not None:
            return
        assert caller.link is not None
        caller.accepting = Accepting(caller.link, self._expected[caller.link].secret, bytes(caller.said))
        caller.said.clear()
        try:
            if caller.sock.send(caller.accepting.challenge) == len(caller.accepting.challenge):
                self._epoll.modify(caller.sock.fileno(), select.EPOLLIN)
                return
            reason = "the caller does not read"
        except OSError as error:
            reason = str(error)
        self._drop(caller, reason)

    def _drop(self, caller: _Caller, reason: str) -> None:
        log.debug("a connection for link %s is dropped: %s", "?" if caller.link is None else caller.link, reason)
        self._forget(caller)
        caller.sock.close()

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.sock.fileno()]
        self._epoll.unregister(caller.sock.fileno())
