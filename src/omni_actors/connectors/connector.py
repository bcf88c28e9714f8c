"""Connectors: the kind of link that joins two workers, as a deploy file's ``edges.STAGE.PORT.connector`` names it."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import ClassVar

from omni_actors.connectors.device import DeviceLink, DeviceMemory
from omni_actors.connectors.link import Link
from omni_actors.connectors.unix import UnixLink
from omni_actors.plugins.contract import CONTRACT
from omni_actors.protocol.frames import Hello


class Connector(ABC):
    """One worker's side of a connector: it makes this worker's end of each link to a stage at the other end of an edge.

    A connector is made once, after the engine has loaded. The serving process joins the two workers by a connected Unix
    socket and gives each worker its end. Any other carrier of payloads (a ring in shared memory, a library for the
    fabric) is agreed on over that socket by the two ends themselves, before the first chunk. So a connector of a
    plug-in joins workers of one machine.

    Subclasses state the version of this contract for which they were written (``contract = 1``), and are made with the
    worker's configuration and the device's memory, where payloads may stay on the device::

        class Ring(Connector):
            contract = 1

            def link(self, id: int, peer: str, sock: socket.socket) -> Link:
                return RingLink(id, peer, sock, self.hello.limits["arena_bytes"])
    """

    contract: ClassVar[int]

    def __init__(self, hello: Hello, memory: DeviceMemory | None = None) -> None:
        self.hello = hello
        self.memory = memory

    @abstractmethod
    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        """Return this end of a link to another worker. Does not wait: the other end may not exist yet.

        Args:
            id: The number of the link, the same at both ends.
            peer: The name of the other worker, ``stage#replica@incarnation``.
            sock: A connected Unix socket, owned by the link from now on.
        """


class SharedMemory(Connector):
    """The connector within a machine: small payloads in the frame, large ones in sealed shared memory."""

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        return UnixLink(id, peer, sock)


class DeviceMemoryConnector(Connector):
    """The connector within a machine for tensors that stay on the device, where both ends can open the device's
    memory."""

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        if self.memory is None:
            return UnixLink(id, peer, sock)
        return DeviceLink(id, peer, sock, self.hello.stage, self.memory)


class Tcp(Connector):
    """The connector between machines.

    The worker itself opens and authenticates TCP links, by address. Where the serving process joins the two workers all
    the same (for other edges between them), the link is a Unix link as within one machine.
    """

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        return UnixLink(id, peer, sock)
