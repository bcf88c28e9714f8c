"""The contract between the worker's loop and an engine.

The loop owns sockets, credits and identities; an engine owns a model and the requests inside it. One thread calls every
method here, in turn: ``admit``, ``feed`` and ``abort`` as frames arrive, then ``step`` while ``runnable``. No method
waits. A step does one iteration over everything that can run (one decode step of a batch, one batch of a one-shot
model) and returns, so that an abort or a new request never waits longer than one iteration.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from omni_actors.connectors.payload import Payload, TensorSpecs
from omni_actors.plugins.contract import CONTRACT
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello, Prefix, Query
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage

if TYPE_CHECKING:
    from omni_actors.worker.ranks import Followers

PACKAGE = __name__.partition(".")[0]


@dataclass(slots=True)
class Work:
    """One request as one stage sees it.

    ``params`` holds the sections declared by the stage, as structs of :mod:`omni_actors.protocol.params` (an unknown
    section as builtins). ``ports`` are the ports that will be fed; input is complete when each port has ended.
    ``visible`` says that the client wants this stage's output; ``routed`` says that another stage takes it.

    ``prefix`` is the output of this stage that an earlier attempt of the request has reported. The new attempt
    continues behind the prefix: the prefix is neither computed nor sent to the client again, but payloads for later
    stages are emitted again. ``delivered`` is the number of samples per channel of this stage that the client already
    has: the stage may begin there, if its chunks' metadata say so (``start``).

    ``priority`` orders requests inside an engine that can choose, the lower the earlier; ``deadline_s`` is the rest of
    the request's time in seconds when it was submitted.
    """

    key: int
    request_id: str
    params: Mapping[str, Any]
    ports: frozenset[str] = frozenset()
    visible: bool = False
    routed: bool = False
    prefix: Prefix | None = None
    delivered: int = 0
    priority: int = 0
    deadline_s: float | None = None


class Outbox(Protocol):
    """The place where an engine puts its output. Calls never wait, and never raise for a retired key (the output is
    dropped)."""

    def ready(self, key: int) -> bool:
        """Return whether every edge of the request has a credit. A request without a credit is not runnable in this
        step."""
        ...

    def text(self, delta: TextDelta) -> None:
        """Send text to the client, if the client wants this stage's output."""
        ...

    def media(self, chunk: MediaChunk) -> None:
        """Send media to the client, if the client wants this stage's output."""
        ...

    def progress(self, progress: StepProgress) -> None:
        """Tell the client that a denoising step is done, whether the client wants this stage's output or not."""
        ...

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        """Record the tokens chosen in this step, for a request whose client does not see the tokens in a delta of this
        stage.

        After this worker's death a new attempt gets the record back as :attr:`Work.prefix`. The record leaves the
        process before this step's payloads do.
        """
        ...

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        """Return a payload with writable tensors, to be filled in and handed to :meth:`emit`, which does not copy the
        tensors.

        Large tensors lie in memory mapped by the readers. The content is undefined before the first write. Do not write
        after ``emit``, nor once the request is over (finished, failed, aborted): memory of a payload that was not
        emitted belongs to another request then.
        """
        ...

    def emit(self, key: int, payload: Payload) -> None:
        """Send a payload to every stage at the end of one of the request's edges. Spends one credit per edge.

        Tensors of a payload that does not come from :meth:`allocate` are copied once, at the end of the step: do not
        change the tensors before.
        """
        ...

    def consumed(self, key: int, port: str) -> None:
        """Report the begin of work on one payload queued by :meth:`Engine.feed`: the payload's credit goes back."""
        ...

    def finish(self, key: int, usage: Usage) -> None:
        """End the request's edges and this stage's part in the request. The last call for a successful request."""
        ...

    def fail(self, key: int, error: ErrorInfo) -> None:
        """Fail the request: the orchestrator ends the request in every stage. The last call for a failed request."""
        ...

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        """Reply to a query that came by :meth:`Engine.query`. ``value`` is plain builtins or a struct."""
        ...


class Engine(ABC):
    """One model under one loop.

    Subclasses take ``(hello)`` and load in :meth:`load`. An engine announced by name in a plug-in states the version of
    this contract for which the engine was written (``contract = 1``).
    """

    contract: ClassVar[int] = CONTRACT

    commands: ClassVar[frozenset[str]] = frozenset()
    """Commands that an operator can give, as queries of these names: ``sleep`` and ``wake``, both or none. An engine
    gets no other commands."""

    followers: Followers | None = None
    """The other ranks of this replica, started before :meth:`load`, if there are any: this engine leads them."""

    compiling: Callable[[], AbstractContextManager[object]] = nullcontext
    """The context around a compilation or a capture of graphs in any step (``with self.compiling(): …``), set by the
    loop. The time inside is held to the stage's ``compile_budget_s`` and not to its ``step_budget_s``, and the rest of
    the step gets a step budget of its own. Loading needs no such context."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    def follow(self, control: socket.socket, rendezvous: int) -> None:
        """Run as a rank other than the first: load, send Ready on ``control``, and execute the leader's commands until
        its end.

        ``rendezvous`` is the descriptor at which the ranks meet. No other method is called in such a process.
        """
        raise OmniError(ErrorInfo(message=f"{type(self).__name__} runs on one device", status=500))

    @property
    def foreign(self) -> bool:
        """Whether the engine is code of another distribution: the loop then checks every value from the engine. Engines
        of this package check the values of their adapters and are not checked again."""
        return type(self).__module__.partition(".")[0] != PACKAGE

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load weights and warm up.

        Args:
            progress: A function to report progress: a text, and the part that is done (0 to 1) or ``None``.

        Returns:
            Facts for the serving process (``Ready.info``), as builtins by name.
        """

    @abstractmethod
    def admit(self, work: Work) -> None:
        """Take a request in. Raises :class:`OmniError` (the client's mistake, or no capacity): the request fails
        alone."""

    @abstractmethod
    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        """Take input on a port, in order.

        Args:
            key: The request.
            port: The port, one of :attr:`Work.ports`.
            payload: The input, or ``None`` for a bare end. Its tensors are views: copy tensors that must outlive the
                call (if the payload is consumed) or the step that starts on the payload (if the payload is queued).
            end: Whether the port ends with this call.

        Returns:
            Whether the payload is consumed, so that its credit can go back to the producer. ``False`` means queued:
            the engine calls ``out.consumed(key, port)`` once when work on the payload begins. Work on a queued payload
            must not wait for another port: both ports may be fed by one producer, which stands still while either edge
            has no credit.

        Raises:
            OmniError: The request fails.
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
        """Do one iteration, and return whether anything ran.

        ``False`` lets the loop block until a frame arrives (every runnable request waits for credit). An exception here
        is a bug of the engine and ends the worker; report a failure of one item with ``out.fail``.
        """

    def rest(self) -> float | None:
        """Give memory back after a time without requests.

        Called once after work, and again after as many seconds as the method returns, as long as nothing arrives.
        ``None`` means: not again before there was work.
        """
        return None

    def counters(self) -> dict[str, float]:
        """Return gauges and counters by name, for metrics. At idle every gauge is zero."""
        return {}

    def query(self, query: Query, out: Outbox) -> None:
        """Take a query beside the requests; reply now or in a later step by ``out.reply``. Raises :class:`OmniError`,
        which becomes the reply. The loop itself answers ``counters``."""
        raise invalid_request(f"unknown query {query.what!r}")

    def close(self) -> None:
        """Free resources that must be freed in order. The process ends right after."""
