"""The two parties that a request record talks to beside its caller and the replicas: its owner, and an observer."""

from __future__ import annotations

from typing import Protocol, TypeVar

from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import Event
from omni_actors.stages.replica import StageReplica

R = TypeVar("R", contravariant=True)


class RequestOwner(Protocol[R]):
    """The owner of request records of type ``R``: it admits a request, and is told of each step of the record's state
    machine. All methods but :meth:`admit` are synchronous."""

    async def admit(self, record: R) -> None:
        """Wait until the request may run, and begin its first attempt. Raises the refusal; nothing is held then."""

    def stage_lost(self, record: R, replica: StageReplica, error: ErrorInfo) -> None:
        """A live request has lost a stage before the stage was done with it: resume the request or fail it."""

    def stage_progressed(self, record: R, replica: StageReplica) -> None:
        """The stage of a resumed request, from which a report was awaited, has reported something."""

    def stage_released(self, record: R, replica: StageReplica, *, current: bool) -> None:
        """A replica holds an attempt of the request no longer: the present one (``current``), which other stages still
        have, or another."""

    def ended(self, record: R) -> None:
        """The request is terminal."""

    def released(self, record: R) -> None:
        """The request is terminal and no worker holds it: the last call."""


class RequestObserver(Protocol):
    """A listener to what the caller of one request gets, for metrics. Its methods run synchronously, on the path of
    each event, and must not raise."""

    def admitted(self) -> None:
        """The request has been admitted."""

    def received(self, event: Event) -> None:
        """The caller has an event. The first event may be reported twice
        (:meth:`~omni_actors.orchestrator.request.RequestStream.peek`); of the text that a text callback consumes only
        the first delta is reported."""

    def failed(self) -> None:
        """The caller was told that the request failed, or left the request with an exception of its own."""

    def left(self) -> None:
        """The request is over for its caller: the last call."""


def report_left(observer: RequestObserver, error: BaseException | None) -> None:
    """Tell an observer that the caller has left the request, with this exception if there is one. A cancellation is no
    failure."""
    if isinstance(error, Exception):
        observer.failed()
    observer.left()
