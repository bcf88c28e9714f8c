"""An engine for :mod:`tests.worker.test_ranks` that computes nothing."""

from __future__ import annotations

import socket

from omni_actors.protocol.codec import frame
from omni_actors.protocol.frames import Ready
from omni_actors.worker.engines.stub import StubEngine


class WaitingEngine(StubEngine):
    """An engine that, as another rank, waits for its leader's end."""

    def follow(self, control: socket.socket, rendezvous: int) -> None:
        control.sendall(frame(Ready({})))
        control.recv(1)
