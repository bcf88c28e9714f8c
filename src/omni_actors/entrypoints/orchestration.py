"""The interface of an orchestrator, as far as the API handlers use it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from omni_actors.orchestrator.owner import RequestObserver
from omni_actors.orchestrator.request import RequestStream
from omni_actors.protocol.request import Request
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts, StageHealth
from omni_actors.stages.control import Control


class Orchestration(Protocol):
    """The part of an orchestrator that the API handlers use."""

    @property
    def control(self) -> Control: ...

    def open(
        self, request: Request, observer: RequestObserver | None = None
    ) -> AbstractAsyncContextManager[RequestStream]: ...

    def reject_early(self, outline: Request, *, priority_may_drop: bool) -> None: ...

    def facts(self, stage: str) -> Mapping[str, Any]: ...

    def health(self) -> Mapping[str, StageHealth]: ...

    def load(self) -> AdmissionLoad: ...

    def resumes(self) -> ResumeCounts: ...

    async def counters(self) -> Mapping[str, list[dict[str, Any]]]: ...
