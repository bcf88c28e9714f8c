"""Which kind of link joins two workers: what a deploy file's ``edges.STAGE.PORT.connector`` names."""

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
    """One worker's side of a connector: it makes this worker's end of each link to a stage that an edge of this
    connector leads to or comes from. Made once, after the engine has loaded.

    The serving process joins the two workers by a connected Unix socket and gives each its end. Whatever else carries
    payloads (a ring in shared memory, a library for the fabric) is agreed on over that socket by the two ends
    themselves, before the first chunk. So a connector of a plug-in joins workers of one machine.

    Subclasses state the version of this contract that they were written for (``contract = 1``), and are made with the
    worker's configuration and the device's memory, where payloads may stay there.
    """

    contract: ClassVar[int]

    def __init__(self, hello: Hello, memory: DeviceMemory | None = None) -> None:
        self.hello = hello
        self.memory = memory

    @abstractmethod
    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        """This end of link ``id`` to the worker ``peer`` (``stage#replica@incarnation``), over a connected Unix socket,
        which is the link's from now on. Does not wait: the other end may not be there yet."""


class SharedMemory(Connector):
    """Within a machine: small payloads in the frame, large ones in sealed shared memory."""

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        return UnixLink(id, peer, sock)


class DeviceMemoryConnector(Connector):
    """Within a machine, tensors stay on the device, where both ends can open its memory."""

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        if self.memory is None:
            return UnixLink(id, peer, sock)
        return DeviceLink(id, peer, sock, self.hello.stage, self.memory)


class Tcp(Connector):
    """Between machines. Its links are opened and authenticated by the worker itself, which is called by address; where
    the serving process joins the two workers all the same (other edges between them), it is as in one machine."""

    contract = CONTRACT

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        return UnixLink(id, peer, sock)
