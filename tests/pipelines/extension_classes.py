"""An engine, a connector and a balancer as plug-ins bring them, and others with faults."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from omni_actors.connectors.connector import Connector
from omni_actors.connectors.link import Link
from omni_actors.connectors.unix import UnixLink
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.request import Request
from omni_actors.stages.balancers import Balancer, Candidate
from omni_actors.worker.engines.stub import StubEngine


class Echo(StubEngine):
    contract = 1


class Unstated(StubEngine):
    """Announced by name, and states no contract."""


class Later(StubEngine):
    contract = 2


class Counted(UnixLink):
    """As the usual one, and its end says that there was one."""


class Counting(Connector):
    contract = 1

    def link(self, id: int, peer: str, sock: socket.socket) -> Link:
        return Counted(id, peer, sock)


class OldConnector(Counting):
    contract = 0


class Last(Balancer):
    """Always the replica with the highest number."""

    contract = 1

    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        return max(candidates, key=lambda it: it.index)


class Raises(Last):
    def choose(self, candidates: Sequence[Candidate], request: Request) -> Candidate:
        raise RuntimeError("secret detail")


class Stray(Last):
    def choose(self, candidates: Sequence[Candidate], request: Request) -> Any:
        return "the second one"


class LaterBalancer(Last):
    contract = 2


PIPELINE = Pipeline(
    name="extended",
    stages=(
        Stage("a", "echo", sections=("stub",)),
        Stage("b", "echo", ports=(Port("text", "text", mode="chunk"),), sections=("stub",), emits="text"),
    ),
    edges=(Edge("a", "b.text", "text", mode="chunk", connector="counting"),),
    tasks=(Task("echo", {"text": "a"}, {"text": "b"}),),
)
