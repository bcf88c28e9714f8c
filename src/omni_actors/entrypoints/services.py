"""What every surface works with: the orchestrator, the media process, the plan, and the server's own state."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.single_flight import SingleFlight
from omni_actors.media.client import MediaService
from omni_actors.orchestrator.request import RequestObserver, RequestStream
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import MEDIA_MODALITIES, Subgraph, subgraph
from omni_actors.protocol.errors import OmniError, invalid_request, not_found
from omni_actors.protocol.request import MediaRef, Request
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts, WorkerExit
from omni_actors.stages.control import Control
from omni_actors.telemetry.metrics import Metrics

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
"""Names that clients ask for without knowing the model: each is an alias of one of the model's own voices."""

MAX_HISTORY = 8 << 20
"""Characters of transcripts that are kept for later turns."""


class StageState(Protocol):
    @property
    def live(self) -> int: ...

    @property
    def wanted(self) -> int: ...

    @property
    def progress(self) -> str: ...

    @property
    def states(self) -> Sequence[str]:
        """Of each replica."""
        ...

    @property
    def restarts(self) -> int: ...

    @property
    def replacing(self) -> bool: ...

    @property
    def down_s(self) -> float | None: ...

    @property
    def attempt_s(self) -> float | None: ...

    @property
    def next_s(self) -> float | None: ...

    @property
    def exits(self) -> Mapping[Any, int]: ...

    @property
    def last_exit(self) -> WorkerExit | None: ...

    @property
    def unlinked(self) -> Sequence[str]: ...


class Orchestration(Protocol):
    """What the surfaces need of an orchestrator."""

    @property
    def control(self) -> Control: ...

    def open(
        self, request: Request, observer: RequestObserver | None = None
    ) -> AbstractAsyncContextManager[RequestStream]: ...

    def foresee(self, outline: Request, *, or_later: bool) -> None: ...

    def health(self) -> Mapping[str, StageState]: ...

    def load(self) -> AdmissionLoad: ...

    def resumes(self) -> ResumeCounts: ...

    async def counters(self) -> Mapping[str, list[dict[str, Any]]]: ...


class SpokenHistory:
    """Transcripts of spoken answers by id, so that a later turn can refer to one.

    Bounded by :data:`MAX_HISTORY`: the oldest goes first, perhaps before its time.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._size = 0

    def expires_at(self) -> int:
        return int(time.time() + self._keep_s)

    def put(self, id: str, transcript: str) -> None:
        now = time.monotonic()
        self._kept[id] = (now + self._keep_s, transcript)
        self._size += len(transcript) + len(id)
        while self._kept:
            oldest, (until, text) = next(iter(self._kept.items()))
            if until > now and self._size <= MAX_HISTORY:
                break
            del self._kept[oldest]
            self._size -= len(text) + len(oldest)

    def get(self, id: str) -> str | None:
        until, transcript = self._kept.get(id, (0.0, ""))
        return transcript if time.monotonic() < until else None


@dataclass(slots=True)
class Services:
    """One deployment as the surfaces see it."""

    orchestrator: Orchestration
    media: MediaService | None
    plan: Plan
    options: ServerOptions
    metrics: Metrics
    started: int = field(default_factory=lambda: int(time.time()))
    history: SpokenHistory = field(init=False)
    media_inputs: Mapping[str, tuple[str, ...]] = field(init=False)
    """Task → the modalities of media that it takes."""
    adapters: tuple[str, ...] = field(init=False)
    """Names of the LoRA adapters."""
    model_names: tuple[str, ...] = field(init=False)
    """Every name that a request may give as its model."""
    counters: SingleFlight[Mapping[str, list[dict[str, Any]]]] = field(init=False)
    """The workers' own. Everybody may read them: that asks each worker at most one question at a time."""

    def __post_init__(self) -> None:
        self.media_inputs = {
            name: tuple(sorted(MEDIA_MODALITIES & task.entries.keys())) for name, task in self.plan.tasks.items()
        }
        self.history = SpokenHistory(self.options.audio_history_s)
        self.adapters = self.plan.adapters
        self.counters = SingleFlight(lambda: self.orchestrator.counters())
        self.model_names = (self.plan.served_model_name, *self.options.model_aliases, *self.adapters)

    def model(self, name: str | None, *, adapted: bool = True) -> str:
        """The name to answer under. Raises 404 for a model that is not served; ``None`` is the one that is. Where
        nothing is ``adapted``, a LoRA adapter is none."""
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
        """The LoRA adapter that a request asks for as its model, if it is one."""
        return name if name in self.adapters else None

    def task(self, name: str, *, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        """Raises 400 when the model has no such task, or not with these modalities."""
        task = self.plan.tasks.get(name)
        if task is None:
            raise invalid_request(f"This model does not do {name}.", "model", "unsupported_task")
        for modality in outputs:
            if modality not in task.outputs:
                raise invalid_request(f"This model gives no {modality}.", "modalities", "unsupported_modality")
        for modality in inputs:
            if modality not in task.entries:
                raise invalid_request(f"This model takes no {modality}.", "messages", "unsupported_modality")

    @property
    def voices(self) -> dict[str, str]:
        """Every name that is answered to → the model's own voice."""
        own = self.plan.voices
        named = {voice: voice for voice in own}
        default = own[0] if own else "default"
        named.setdefault("default", default)
        for place, alias in enumerate(OPENAI_VOICES):
            named.setdefault(alias, own[place % len(own)] if own else default)
        return named

    def voice(self, name: str | None, param: str) -> str:
        """The model's own voice of that name, alias or id; ``None`` is the default. Raises 400 for an unknown one."""
        found = self._voice("default" if name is None else name)
        if found is None:
            raise invalid_request(f"Unknown voice '{name}'; known: {', '.join(self.voices)}.", param, "unknown_voice")
        return found

    def has_voice(self, name: str) -> bool:
        """Whether the model has a voice of that name, alias or id."""
        return self._voice(name) is not None

    def _voice(self, name: str) -> str | None:
        known = self.voices
        # Names of speakers are written in any case.
        return known.get(name) or {voice.lower(): own for voice, own in known.items()}.get(name.lower())

    def media_process(self) -> MediaService:
        if self.media is None:
            raise invalid_request("This model takes no media.", None, "unsupported_modality")
        return self.media

    @asynccontextmanager
    async def clips(self, refs: list[MediaRef]) -> AsyncGenerator[None, None]:
        """Owns decoded clips: when the block is left, those that no request has taken are freed."""
        try:
            yield
        finally:
            if refs and self.media is not None:
                await self.media.discard(refs)

    def needed(self, task: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Subgraph:
        """The part of the plan that such a request needs. Raises 400 for what the plan cannot do."""
        return subgraph(self.plan, task, inputs, outputs)

    def foresee(self, outline: Request, *, or_later: bool) -> None:
        """Raises what is sure to be said of a request, so that nothing is done for it in vain. ``or_later``: no more is
        known of it than that it needs what ``outline`` needs, or more, and it may be less urgent; without that,
        ``outline`` is the request, but for its media. Counted like a request that was opened."""
        try:
            self.orchestrator.foresee(outline, or_later=or_later)
        except OmniError:
            counted = self.metrics.request(outline.task)
            counted.failed()
            counted.left()
            raise

    def open(self, request: Request) -> AbstractAsyncContextManager[RequestStream]:
        """Return a request's stream, to be run by entering it. The request is counted in the metrics once, when the
        block is left, however it ended."""
        return self.orchestrator.open(request, self.metrics.request(request.task))
