"""Sees that a client has left, also while it has sent more than anybody has read yet."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

import trio

_LEFT = select.EPOLLRDHUP | select.EPOLLONESHOT  # errors and hang-ups are always reported


class DisconnectWatcher:
    """Calls back when the peer of a watched socket closes or resets its connection.

    Trio waits for *readable*, and a socket with unread bytes (a pipelined request, a body that nobody wants) is that
    already: the end behind them would not be seen before they are read. EPOLLRDHUP tells the end alone. One epoll
    watches all connections, and trio waits for that; a connection costs one registration, its requests nothing.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}

    def watch(self, connection: socket.socket, left: Callable[[], None]) -> None:
        """``left`` is called once, from :meth:`run`."""
        number = connection.fileno()
        self._epoll.register(number, _LEFT)
        self._watched[number] = left

    def forget(self, connection: socket.socket) -> None:
        """To be called before the socket is closed: its number may be another's then."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for number, _ in self._epoll.poll(0):
                self._watched[number]()

    def close(self) -> None:
        """To be called when nothing is watched any more."""
        self._epoll.close()
