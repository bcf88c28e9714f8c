"""The contract between a replica and the requests in its worker."""

from __future__ import annotations

from typing import Protocol, TypeVar

from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import Ledger
from omni_actors.protocol.request import MediaChunk, StageDone, StepProgress, TextDelta

R = TypeVar("R", contravariant=True)
"""The class of the replica (:class:`~omni_actors.stages.replica.StageReplica`), which imports this module."""


class RequestListener(Protocol[R]):
    """A request, as its replicas see it.

    All methods are synchronous and never raise. An event of an attempt (``key``) that is over changes nothing, except
    that the attempt is released.
    """

    def on_text(self, replica: R, delta: TextDelta) -> None: ...
    def on_media(self, replica: R, chunk: MediaChunk) -> None: ...
    def on_progress(self, replica: R, progress: StepProgress) -> None: ...
    def on_ledger(self, replica: R, entry: Ledger) -> None: ...
    def on_done(self, replica: R, done: StageDone) -> None: ...
    def on_failed(self, replica: R, key: int, error: ErrorInfo) -> None: ...
    def on_released(self, replica: R, key: int) -> None: ...
    def on_fed(self, key: int, count: int) -> None: ...
