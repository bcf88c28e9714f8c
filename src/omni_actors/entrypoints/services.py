"""The services that every API handler uses: the orchestrator, the media process, the plan and the server's state."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from omni_actors.entrypoints.history import SpokenHistory
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.orchestration import Orchestration
from omni_actors.entrypoints.picture_files import PictureFiles
from omni_actors.entrypoints.single_flight import SingleFlight
from omni_actors.entrypoints.voices import Voices
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator.request import RequestStream
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES, Subgraph, subgraph
from omni_actors.protocol.errors import OmniError, invalid_request, not_found
from omni_actors.protocol.request import MediaRef, Request
from omni_actors.telemetry.metrics import Metrics


@dataclass(slots=True)
class Services:
    """One deployment, as the API handlers see it."""

    orchestrator: Orchestration
    media: MediaService | None
    plan: Plan
    options: ServerOptions
    metrics: Metrics
    started: int = field(default_factory=lambda: int(time.time()))
    history: SpokenHistory = field(init=False)
    voices: Voices = field(init=False)
    pictures: PictureFiles = field(init=False)
    """The pictures that clients fetch by URL."""
    planned_adapters: tuple[str, ...] = field(init=False)
    """Names of the LoRA adapters of the plan."""
    media_inputs: Mapping[str, tuple[str, ...]] = field(init=False)
    """The media modalities of each task's inputs."""
    counters: SingleFlight[Mapping[str, list[dict[str, Any]]]] = field(init=False)
    """The workers' own counters. Anybody may ask for them, so each worker is asked at most one question at a time."""

    def __post_init__(self) -> None:
        self.media_inputs = {
            name: tuple(sorted(MEDIA_MODALITIES & task.entries.keys())) for name, task in self.plan.tasks.items()
        }
        self.planned_adapters = self.plan.adapters
        self.history = SpokenHistory(self.options.audio_history_s)
        self.voices = Voices(self.plan.voices)
        limits = self.plan.limits
        self.pictures = PictureFiles(limits.picture_files_bytes, limits.picture_files_s)
        self.counters = SingleFlight(lambda: self.orchestrator.counters())

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters: those of the plan, and those that were loaded since."""
        return (*self.planned_adapters, *self.orchestrator.adapters.names)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every name that a request may give as its model."""
        return (self.plan.served_model_name, *self.options.model_aliases, *self.adapters)

    def model(self, name: str | None, *, adapted: bool = True) -> str:
        """Return the name under which to answer. ``None`` is the served model; without ``adapted``, LoRA adapters are
        not accepted. Raises 404 for other names."""
        if name is None:
            return self.plan.served_model_name
        if name not in self.model_names or (not adapted and name in self.adapters):
            names = [it for it in self.model_names if adapted or it not in self.adapters]
            raise not_found(
                f"The model '{name}' does not exist; this server has: {', '.join(names)}.",
                "model",
                "model_not_found",
            )
        return name

    def adapter(self, name: str | None) -> str | None:
        """Return the LoRA adapter that a request names as its model, if it names one."""
        return name if name in self.adapters else None

    def task(self, name: str, *, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Raise 400 if the model lacks the task, or lacks one of its modalities."""
        task = self.plan.tasks.get(name)
        if task is None:
            raise invalid_request(f"This model does not do {name}.", "model", "unsupported_task")
        for modality in outputs:
            if modality not in task.outputs:
                raise invalid_request(f"This model gives no {modality}.", "modalities", "unsupported_modality")
        for modality in inputs:
            if modality not in task.entries:
                raise invalid_request(f"This model takes no {modality}.", "messages", "unsupported_modality")

    def media_process(self) -> MediaService:
        if self.media is None:
            raise invalid_request("This model takes no media.", None, "unsupported_modality")
        return self.media

    @asynccontextmanager
    async def clips(self, refs: list[MediaRef]) -> AsyncGenerator[None, None]:
        """Own decoded clips: clips that no request has taken by the end of the block are freed."""
        try:
            yield
        finally:
            if refs and self.media is not None:
                await self.media.discard(refs)

    def needed(self, task: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Subgraph:
        """Return the part of the plan that a request needs. Raises 400 for a task or modality outside of the plan."""
        return subgraph(self.plan, task, inputs, outputs)

    def reject_early(self, outline: Request, *, priority_may_drop: bool) -> None:
        """Raise the error that admission is certain to raise for a request, before any further work for it; reserve
        nothing.

        With ``priority_may_drop``, ``outline`` is only a lower bound: the request needs at least the stages of
        ``outline``, and may be less urgent. Otherwise ``outline`` is the request itself, without its media. A refusal
        is counted like an opened request.
        """
        try:
            self.orchestrator.reject_early(outline, priority_may_drop=priority_may_drop)
        except OmniError:
            counted = self.metrics.request(outline.task)
            counted.failed()
            counted.left()
            raise

    def open(self, request: Request) -> AbstractAsyncContextManager[RequestStream]:
        """Return a request's stream, to be run by entering it. The request is counted in the metrics once, when the
        block is left, however it ended."""
        return self.orchestrator.open(request, self.metrics.request(request.task))
