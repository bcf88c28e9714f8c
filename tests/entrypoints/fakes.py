"""An orchestrator in memory with the API of the real one, and the application over a real socket."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
import trio
from msgspec.structs import replace as replaced
from tests.media.harness import MediaHarness, tone
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.middleware import PROBES
from omni_actors.entrypoints.openai.errors import http_error_body
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import hypercorn, serve
from omni_actors.media.limits import read_limits
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator.admission import Admission
from omni_actors.orchestrator.owner import RequestObserver
from omni_actors.orchestrator.request import RequestStream
from omni_actors.pipelines.declaration import Pipeline, Task
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError, invalid_request, not_found
from omni_actors.protocol.request import Completed, Event, MediaChunk, Request, TextDelta, TokenLogprob, Usage
from omni_actors.protocol.status import AdmissionLoad, ResumeCounts, StageHealth, WorkerExit
from omni_actors.stages.control import Control
from omni_actors.telemetry.metrics import Metrics

RATE = 24_000
WORDS = ["Paris", " is", " the", " capital", " of", " France", "."]
TEXT = "".join(WORDS)
SPEECH = tone(0.5, RATE)
PROMPT = Usage(prompt_tokens=11, cached_tokens=3)
HEARD = Usage(prompt_tokens=4, completion_tokens=9, audio_input_s=1.5)

PIPELINE = replace(
    ASSISTANT,
    tasks=(
        *ASSISTANT.tasks,
        Task("completion", {"text": "llm"}, {"text": "llm"}),
        Task("translation", {"audio": "asr.audio"}, {"text": "asr"}),
    ),
    voices=("heart", "bella"),
    languages=("en", "de"),
)

TEXT_ONLY = Pipeline(
    name="writer",
    stages=tuple(stage for stage in ASSISTANT.stages if stage.name == "llm"),
    tasks=(Task("chat", {"text": "llm"}, {"text": "llm"}), Task("completion", {"text": "llm"}, {"text": "llm"})),
)
"""A language model alone, without a media process."""

Step = Event | OmniError | float | trio.Event
Script = Callable[[Request], list[Step]]


def logprob(token: str) -> TokenLogprob:
    return TokenLogprob(1, token.encode(), -0.5, ((1, token.encode(), -0.5), (2, b"\xff", -1.5)))


def answer(request: Request) -> list[Step]:
    """Text, speech or both, as asked for: audio comes interleaved with text, in chunks cut at odd places of 50 ms."""
    sampling = request.params.get("sampling")
    choices = sampling.n if sampling else 1
    usage = {"llm": replaced(PROMPT, completion_tokens=len(WORDS) * choices)}
    steps: list[Step] = []
    meta = {"sample_rate": RATE, "channels": 1}
    audio = [SPEECH[at : at + 2402] for at in range(0, len(SPEECH), 2402)]
    wants_text = "text" in request.outputs
    if request.task in ("transcription", "translation"):
        segments = [{"start": 0.0, "end": 1.5, "text": TEXT}]
        words = [{"word": "Paris", "start": 0.0, "end": 0.4}]
        steps.append(
            TextDelta(0, 0, TEXT, [], "stop", None, {"segments": segments, "words": words, "language": "en"}, HEARD)
        )
        return [*steps, Completed({"asr": HEARD})]
    if wants_text:
        for place, word in enumerate(WORDS):
            for index in range(choices):
                last = place == len(WORDS) - 1
                wanted = sampling is not None and sampling.logprobs is not None
                scores = [logprob(word)] if wanted else None
                told = None if place or index else PROMPT
                steps.append(TextDelta(0, index, word, [place], "stop" if last else None, scores, None, told))
            if "audio" in request.outputs and audio:
                steps.append(MediaChunk(0, "audio", meta, audio.pop(0)))
    if "audio" in request.outputs:
        steps += [MediaChunk(0, "audio", meta, piece) for piece in audio]
        usage["vocoder"] = Usage(audio_output_s=0.5)
    return [*steps, Completed(usage)]


@dataclass
class Stage:
    live: int = 1
    wanted: int = 1
    progress: str = "ready"
    states: tuple[str, ...] = ("ready",)
    restarts: int = 0
    replacing: bool = False
    down_s: float | None = None
    attempt_s: float | None = None
    next_s: float | None = None
    exits: dict[str, int] = field(default_factory=dict)
    last_exit: WorkerExit | None = None
    unlinked: tuple[str, ...] = ()


@dataclass
class FakeAdapters:
    """LoRA adapters by name, loaded without a worker."""

    paths: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.paths)

    async def load(self, name: str, path: str, *, replace: bool = False) -> None:
        if name in self.paths and not replace:
            raise invalid_request("It is loaded already.", "lora_name")
        self.paths[name] = path

    async def unload(self, name: str) -> None:
        if self.paths.pop(name, None) is None:
            raise not_found("It is not loaded.", "lora_name", "lora_not_found")


@dataclass
class FakeOrchestrator:
    """Plays a script per request: events, failures (raised), delays (seconds) and events to wait for."""

    plan: Plan
    script: Script = answer
    requests: list[Request] = field(default_factory=list)
    cancelled: int = 0
    completed: int = 0
    running: int = 0
    active: list[Request] = field(default_factory=list)
    stages: dict[str, Stage] = field(default_factory=dict)
    reported: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: trio.Event = field(default_factory=trio.Event)
    adapters: FakeAdapters = field(default_factory=FakeAdapters)

    def __post_init__(self) -> None:
        self.stages = {stage.name: Stage() for stage in self.plan.stages}
        self.control = Control({}, self.plan.limits, lambda replica: None)
        self.admission = Admission(self.plan)
        for stage in self.plan.stages:
            self.admission.stage(stage.name, 1, coming=False)

    def reject_early(self, outline: Request, *, priority_may_drop: bool) -> None:
        """By an admission that scripts know nothing of; a test fills it."""
        try:
            graph = subgraph(self.plan, outline.task, outline.inputs, outline.outputs)
        except OmniError:
            if priority_may_drop:
                return
            raise
        self.admission.reject_early(outline, graph, priority_may_drop=priority_may_drop)

    @asynccontextmanager
    async def open(self, request: Request, observer: RequestObserver | None = None) -> AsyncIterator[FakeStream]:
        self.requests.append(request)
        steps = self.script(request)
        observer = observer or Metrics().request(request.task)
        if steps and isinstance(steps[0], OmniError):
            observer.failed()
            observer.left()
            raise steps[0]
        stream = FakeStream(f"req-{len(self.requests)}", steps, observer)
        observer.admitted()
        self.running += 1
        self.active.append(request)
        self.idle = trio.Event()
        try:
            yield stream
        except Exception:
            observer.failed()
            raise
        finally:
            observer.left()
            self.running -= 1
            self.active.remove(request)
            if stream.steps:
                self.cancelled += 1
            else:
                self.completed += 1
            if not self.running:
                self.idle.set()

    def health(self) -> dict[str, StageHealth]:
        return {name: StageHealth(name, last_error=None, **vars(it)) for name, it in self.stages.items()}

    def facts(self, stage: str) -> dict[str, Any]:
        return self.reported.get(stage, {})

    def load(self) -> AdmissionLoad:
        running = dict.fromkeys(self.plan.tasks, 0)
        for request in self.active:
            running[request.task] += 1
        return AdmissionLoad(
            running, dict.fromkeys(self.plan.tasks, 0), 0, dict.fromkeys(self.stages, 0), {"queue_full": 3}
        )

    def resumes(self) -> ResumeCounts:
        return ResumeCounts(dict.fromkeys(self.stages, 0), 0, 0, 0, 0.0)

    async def counters(self) -> dict[str, list[dict[str, float]]]:
        return {"llm": [{"running": float(self.running), "kv.blocks": 7.0, "steps_total": 3.0}]}


class FakeStream(RequestStream):
    """A stream whose events come out of a script, each while its receiver waits; everything public is replaced."""

    def __init__(self, id: str, steps: list[Step], observer: RequestObserver) -> None:
        self.id = id
        self.steps = steps
        self.observer = observer
        self.callback: Callable[[TextDelta], bool] = lambda delta: False
        self.peeked: Event | None = None

    @property
    def waiting(self) -> bool:
        return False

    def set_text_callback(self, callback: Callable[[TextDelta], bool]) -> None:
        self.callback = callback

    async def peek(self) -> Event:
        self.peeked = self.peeked or await self.receive()
        return self.peeked

    async def receive(self) -> Event:
        await trio.lowlevel.checkpoint()
        if self.peeked is not None:
            event, self.peeked = self.peeked, None
            return event
        while self.steps:
            step = self.steps[0]
            if isinstance(step, trio.Event):
                await step.wait()
            elif isinstance(step, float):
                await trio.sleep(step)
            elif isinstance(step, OmniError):
                del self.steps[0]
                self.observer.failed()
                raise step
            else:
                self.observer.received(step)
                if not (isinstance(step, TextDelta) and self.callback(step)):
                    del self.steps[0]
                    return step
            del self.steps[0]
        raise trio.EndOfChannel


@dataclass
class Server:
    """A served application. ``url`` has no path."""

    url: str
    orchestrator: FakeOrchestrator
    harness: MediaHarness
    client: httpx.AsyncClient
    stop: trio.Event

    async def settled(self) -> None:
        """Wait until nothing of any request is left; fails when something stays."""
        with trio.fail_after(5):
            while self.orchestrator.running or any(self.harness.gauges().values()):
                self.harness.engine.step(self.harness)
                await trio.sleep(0.005)

    async def post(self, path: str, json: Any, **more: Any) -> httpx.Response:
        return await self.client.post(path, json=json, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **more)


@asynccontextmanager
async def served(
    script: Script = answer,
    *overrides: str,
    pipeline: Pipeline = PIPELINE,
    plan: Plan | None = None,
    options: ServerOptions | None = None,
    grace_s: float = 1.0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Server]:
    """The application on a free port (or the options' unix socket), with the real media engine behind a real client,
    which speaks no TLS."""
    plan = plan or plan_of(pipeline, *overrides)
    orchestrator = FakeOrchestrator(plan, script)
    settings = plan.media.options if plan.media is not None else {}
    harness = MediaHarness(**settings)
    media = MediaService(harness.query, limits=read_limits(settings)) if plan.media is not None else None
    options = options or ServerOptions()
    app = build_app(orchestrator, media, plan, options)
    stop = trio.Event()
    builtin = partial(serve, limits=options.limits, probes=PROBES, error_body=http_error_body)
    run = builtin if options.server == "builtin" else hypercorn.serve
    async with trio.open_nursery() as nursery:
        if media is not None:
            nursery.start_soon(media.run)
        where: dict[str, Any] = {"unix_path": options.unix_path, "tls": tls}
        urls = await nursery.start(partial(run, app, "127.0.0.1", 0, grace_s=grace_s, shutdown=stop.wait, **where))
        base = urls[0] if options.unix_path is None else "http://localhost"
        transport = httpx.AsyncHTTPTransport(uds=options.unix_path)
        async with httpx.AsyncClient(base_url=base, timeout=20, transport=transport) as client:
            yield Server(urls[0], orchestrator, harness, client, stop)
        stop.set()
        nursery.cancel_scope.cancel()


def message(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [{"role": "user", "content": text}], **more}
