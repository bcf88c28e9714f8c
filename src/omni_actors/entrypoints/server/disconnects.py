"""Detection of clients that leave, even while unread bytes of theirs wait in the socket."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

import trio

_LEFT = select.EPOLLRDHUP | select.EPOLLONESHOT  # errors and hang-ups are always reported


class DisconnectWatcher:
    """Calls back when the peer of a watched socket closes or resets its connection.

    Trio waits for *readable*, and a socket with unread bytes (a pipelined request, an unwanted body) already is
    readable: the end behind those bytes would not be seen before they are read. EPOLLRDHUP reports the end alone. One
    epoll watches all connections, and trio waits for that epoll. A connection costs one registration, a request costs
    nothing.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}

    def watch(self, connection: socket.socket, left: Callable[[], None]) -> None:
        """Watch a connection; ``left`` is called once, from :meth:`run`."""
        number = connection.fileno()
        self._epoll.register(number, _LEFT)
        self._watched[number] = left

    def forget(self, connection: socket.socket) -> None:
        """Stop watching a connection. Call this before the socket is closed: afterwards another socket may have its
        number."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    async def run(self) -> None:
        """Call back for closed connections until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, _ in self._epoll.poll(0):
                self._watched[number]()

    def close(self) -> None:
        """Close the epoll. Call this when nothing is watched any more."""
        self._epoll.close()
