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


class RuntimeAdapters(Protocol):
    """LoRA adapters that are loaded and unloaded while a deployment runs."""

    @property
    def names(self) -> tuple[str, ...]: ...

    async def load(self, name: str, path: str, *, replace: bool = False) -> None: ...

    async def unload(self, name: str) -> None: ...


class Orchestration(Protocol):
    """The part of an orchestrator that the API handlers use."""

    @property
    def control(self) -> Control: ...

    @property
    def adapters(self) -> RuntimeAdapters: ...

    def open(
        self, request: Request, observer: RequestObserver | None = None
    ) -> AbstractAsyncContextManager[RequestStream]: ...

    def reject_early(self, outline: Request, *, priority_may_drop: bool) -> None: ...

    def facts(self, stage: str) -> Mapping[str, Any]: ...

    def health(self) -> Mapping[str, StageHealth]: ...

    def load(self) -> AdmissionLoad: ...

    def resumes(self) -> ResumeCounts: ...

    async def counters(self) -> Mapping[str, list[dict[str, Any]]]: ...
