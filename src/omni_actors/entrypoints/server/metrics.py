"""The counters that the server feeds: an interface, and an implementation that counts nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class ServerMetrics(Protocol):
    """The counters of connections that a server feeds. Each call must be cheap and must not raise."""

    def connection_opened(self) -> None:
        """Count a connection that was accepted."""
        ...

    def connection_closed(self, reason: str) -> None:
        """Count a connection that has ended, by its reason (:data:`~omni_actors.entrypoints.server.server.Reason`)."""
        ...

    def accepting_paused(self, cause: str) -> None:
        """Count a pause in accepting, by the resource that is used up: ``connections`` or ``descriptors``."""
        ...

    def websocket(self) -> AbstractContextManager[None]:
        """Return a block that counts one open WebSocket while the block runs."""
        ...


class NoMetrics:
    """A :class:`ServerMetrics` that counts nothing."""

    def connection_opened(self) -> None:
        """Do nothing."""

    def connection_closed(self, reason: str) -> None:
        """Do nothing."""

    def accepting_paused(self, cause: str) -> None:
        """Do nothing."""

    def websocket(self) -> AbstractContextManager[None]:
        """Return a block that does nothing."""
        return nullcontext()
