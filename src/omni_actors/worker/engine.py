"""The contract between the worker's loop and an engine.

The loop owns sockets, credits and identities; an engine owns a model and the requests inside it. One thread calls
everything here, in turn: ``admit``, ``feed`` and ``abort`` as frames arrive, then ``step`` while ``runnable``. Nothing
here waits. A step does one iteration over everything that can run (one decode step of a batch, one batch of a one-shot
model) and returns, so that an abort or a new request never waits longer than one iteration.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from omni_actors.connectors.payload import Payload, TensorSpecs
from omni_actors.plugins.contract import CONTRACT
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello, Prefix, Query
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage

if TYPE_CHECKING:
    from omni_actors.worker.ranks import Followers

PACKAGE = __name__.partition(".")[0]


@dataclass(slots=True)
class Work:
    """One request as one stage sees it.

    ``params`` holds the sections that the stage declared, as structs of :mod:`omni_actors.protocol.params` (an unknown
    section as builtins). ``ports`` are the ports that will be fed; input is complete when each has ended.
    ``visible`` says that the client wants this stage's output; ``routed`` that another stage does.
    ``prefix`` is what an earlier attempt of the request has reported of this stage, which goes on behind it: it is
    neither computed nor told to the client again, but what later stages need of it is emitted again. ``delivered`` are
    the samples per channel that the client has of this stage: it may begin there, if its chunks' metadata say so
    (``start``).
    """

    key: int
    request_id: str
    params: Mapping[str, Any]
    ports: frozenset[str] = frozenset()
    visible: bool = False
    routed: bool = False
    prefix: Prefix | None = None
    delivered: int = 0


class Outbox(Protocol):
    """Where an engine puts what it made. Calls never wait and never raise for a retired key (it is dropped)."""

    def ready(self, key: int) -> bool:
        """Whether every edge of this request has a credit. Without one the request is not runnable in this step."""
        ...

    def text(self, delta: TextDelta) -> None:
        """To the client, if it wants this stage's output."""
        ...

    def media(self, chunk: MediaChunk) -> None:
        """To the client, if it wants this stage's output."""
        ...

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        """What this step chose for a request whose client does not see it in a delta of this stage: a new attempt after
        this worker's death gets it back as :attr:`Work.prefix`. Leaves the process before this step's payloads do."""
        ...

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        """A payload with writable tensors, to be filled in and then handed to :meth:`emit`, which copies nothing of it:
        large ones lie where their readers will see them. Their content is undefined until it is written. They are not
        to be written after ``emit``, nor once the request is over (finished, failed, aborted): what it had not emitted
        is another request's memory then."""
        ...

    def emit(self, key: int, payload: Payload) -> None:
        """To every stage that this request's edges lead to. Spends one credit per edge. The tensors of a payload that
        does not come from :meth:`allocate` are copied once, at the end of this step: they must not change before."""
        ...

    def consumed(self, key: int, port: str) -> None:
        """One payload that :meth:`Engine.feed` had queued is being worked on: its credit goes back."""
        ...

    def finish(self, key: int, usage: Usage) -> None:
        """The last word on success: ends the request's edges and this stage's part in it."""
        ...

    def fail(self, key: int, error: ErrorInfo) -> None:
        """The last word on failure: the orchestrator ends the request, in every stage."""
        ...

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        """The answer to a question that came by :meth:`Engine.query`. ``value`` is plain builtins or a struct."""
        ...


class Engine(ABC):
    """One model under one loop. Subclasses take ``(hello)`` and load in :meth:`load`. One that a plug-in announces by
    name states the version of this contract that it was written for (``contract = 1``)."""

    contract: ClassVar[int] = CONTRACT

    commands: ClassVar[frozenset[str]] = frozenset()
    """What an operator can have it do, by questions of these names: ``sleep`` and ``wake``, both or none. It is asked
    nothing else of that kind."""

    followers: Followers | None = None
    """The other ranks of this replica, started before :meth:`load`, if it has any: this engine leads them."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    def follow(self, control: socket.socket, rendezvous: int) -> None:
        """In a process that is another rank than the first: load, say Ready on ``control``, and do what the leader says
        there, until its end. ``rendezvous`` is the descriptor at which the ranks meet. Nothing else is called then."""
        raise OmniError(ErrorInfo(message=f"{type(self).__name__} runs on one device", status=500))

    @property
    def foreign(self) -> bool:
        """Whether code of another distribution speaks to the loop, which then checks everything that it says. Engines
        of this package check what their adapters give them, and are not checked again."""
        return type(self).__module__.partition(".")[0] != PACKAGE

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load weights, warm up, and return what the serving process should know (``Ready.info``)."""

    @abstractmethod
    def admit(self, work: Work) -> None:
        """Take a request in. Raises :class:`OmniError` (the client's mistake, or full): it fails alone."""

    @abstractmethod
    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        """Input on a port, in order; ``payload`` is ``None`` for a bare end. A payload's tensors are views: copy what
        must outlive this call (if it is consumed) or the step that starts on it (if it is queued). Raises
        :class:`OmniError` to fail the request.

        Returns whether the payload is consumed, so that its credit can go back to the producer. ``False`` means that
        it is queued: the engine calls ``out.consumed(key, port)`` once for it when it starts on it. Starting on it must
        not wait for another port: both may come from one producer, which stands still while either edge has no credit.
        """

    @abstractmethod
    def abort(self, key: int) -> None:
        """Forget the request at once. Unknown keys are ignored."""

    @property
    @abstractmethod
    def runnable(self) -> bool:
        """Whether :meth:`step` has something to do now (ignoring credits)."""

    @abstractmethod
    def step(self, out: Outbox) -> bool:
        """One iteration. Returns whether anything ran: ``False`` lets the loop block until a frame arrives (every
        runnable request waits for credit). An exception here is a bug of the engine and ends the worker; a failure of
        one item goes to ``out.fail``."""

    def rest(self) -> float | None:
        """Give memory back: nobody has asked for anything for a while. Called once after work, and again after as many
        seconds as it returns, as long as nothing comes (``None``: not again before there was work)."""
        return None

    def counters(self) -> dict[str, float]:
        """Gauges and counters by name, for metrics: at idle every gauge is zero."""
        return {}

    def query(self, query: Query, out: Outbox) -> None:
        """Take a question beside the requests; answer it now or in a later step by ``out.reply``. Raises
        :class:`OmniError`, which becomes the answer. The loop itself answers ``counters``."""
        raise invalid_request(f"unknown question {query.what!r}")

    def close(self) -> None:
        """Free what must be freed in order. The process ends right after."""
