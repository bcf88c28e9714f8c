"""What is not the production's in a run: the launcher, the clock, trio's dice, and the network under TCP links."""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import trio
import trio.testing

from omni_actors.actors.errors import ProcessDied
from omni_actors.connectors import descriptors, listener, tcp
from omni_actors.orchestrator import orchestrator, streamed_input, submission, wiring
from omni_actors.protocol.errors import OmniError
from omni_actors.stages import channel
from omni_actors.stages.liveness import Watch
from omni_actors.worker import control_socket, links, loop, rest

from .deployments import socket_pair
from .launcher import open_sim_launcher
from .world import World

FEEDS = 3
"""Pieces of streaming input under way, instead of the usual number."""

MOST_UNSENT = 2048
"""Bytes that may wait for the serving process before a worker makes no more, instead of the usual number."""

RECV_BYTES = 1000
"""What one read takes, so that much needs several."""

log = logging.getLogger("omni_actors")


class Deadlock(Exception):
    """Everybody waits, and nobody for a deadline."""


def virtual_clock() -> trio.testing.MockClock:
    """Jumps to the next deadline when all sleep. Raises :class:`Deadlock` (in trio's own error) when there is none."""
    clock = trio.testing.MockClock(autojump_threshold=0)

    def jump_or_raise() -> None:
        seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if seconds == math.inf:
            raise Deadlock
        if seconds > 0:
            clock.jump(seconds)

    clock._autojump = jump_or_raise  # type: ignore[method-assign]
    return clock


@contextmanager
def substituted(world: World) -> Iterator[None]:
    """All of it, for the time of one run."""
    clock = SimpleNamespace(monotonic=trio.current_time)
    network = _Network()
    handler = _Errors(world)
    level, propagate = log.level, log.propagate
    with ExitStack() as stack:
        for target, name, value in (
            (orchestrator, "open_launcher", open_sim_launcher),
            (submission, "random", random.Random(world.seed)),
            (Watch.__init__, "__defaults__", (trio.current_time,)),
            (streamed_input, "MAX_UNCONSUMED", FEEDS),
            (control_socket, "_MAX_UNSENT", MOST_UNSENT),
            (descriptors, "RECV_BYTES", RECV_BYTES),
            (channel, "_RECV_BYTES", RECV_BYTES),
            (listener, "time", clock),
            (tcp, "time", clock),
            (links, "time", clock),
            (loop, "time", clock),
            (rest, "time", clock),
            (tcp, "socket", network.sockets),
            (listener, "socket", network.sockets),
            (tcp, "configure", _unblock),
            (listener, "configure", _unblock),
            (wiring, "socket", SimpleNamespace(socketpair=lambda: socket_pair(world.schedule.deployment))),
            (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (trio._core._run, "_r", random.Random(world.seed)),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        log.addHandler(handler)
        stack.callback(log.removeHandler, handler)
        log.setLevel(handler.level)
        log.propagate = False
        try:
            yield
        finally:
            log.setLevel(level)
            log.propagate = propagate


class _Network:
    """Unix sockets that look like TCP ones: what is sent has arrived at once, so that virtual time cannot overtake."""

    _runs = itertools.count()

    def __init__(self) -> None:
        self._name = f"\0omni-actors-simulation-{os.getpid()}-{next(self._runs)}"
        self._ports = itertools.count(10_000)
        self.sockets = SimpleNamespace(
            **{name: value for name, value in vars(socket).items() if name.isupper()},
            socket=lambda *_family: self._socket(),
            create_server=self._server,
        )

    def _socket(self) -> socket.socket:
        name = self._name

        class Client(socket.socket):
            def connect(self, address: Any) -> None:
                super().connect(f"{name}-{address[1]}")

        return Client(socket.AF_UNIX, socket.SOCK_STREAM)

    def _server(self, address: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        port = next(self._ports)

        class Server(socket.socket):
            def getsockname(self) -> tuple[str, int]:
                return address[0], port

        server = Server(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(f"{self._name}-{port}")
        server.listen(backlog)
        return server


def _unblock(sock: socket.socket) -> None:
    """In the place of what is set on TCP sockets."""
    sock.setblocking(False)


class _Errors(logging.Handler):
    """Exceptions that nobody foresaw are violations, also those that somebody logs and survives."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.tracing else logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._world.note(f"{record.levelname} {record.getMessage()}{'' if error is None else f' ({error!r})'}")
        if record.levelno >= logging.ERROR and error is not None and not _foreseen(error):
            self._world.violate(f"{record.getMessage()}: {error!r}")


def _foreseen(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_foreseen, error.exceptions))
    return isinstance(error, (ProcessDied, OmniError)) or "asked " in str(error)
