"""The frozen Plan: a pipeline that is placed, sized and bounded. What every other room builds on.

A Plan is made once by :func:`omni_actors.pipelines.factory.resolve` and never changes; a change of configuration is
another Plan. Its mappings are read-only views. Nothing in it is lazy: every default is already filled in, and
:attr:`Plan.provenance` says for every value where it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from omni_actors.pipelines.declaration import Pipeline, Recovery, Stage, Task
from omni_actors.pipelines.layout import Layout, lay_out
from omni_actors.pipelines.strategy import VLLM, Strategy
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, EdgeSpec, Hello, RankPlace

MEDIA_STAGE = "media"
"""Name of the implicit stage that decodes what clients send and encodes what they get."""

LOOPBACK = "127.0.0.1"

OriginKind = Literal["default", "declaration", "model", "platform", "overlay", "environment", "command line"]


class PlanError(OmniError):
    """A deployment that cannot be: its message says what is wrong, where, and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(message=message, type="configuration_error", code="bad_plan", status=500))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. ``where`` is ``file:line``, the text of an option, a variable with its value, a
    platform's name, or (of kind ``model``) the folder that says so."""

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}" if self.where else self.kind


def limit(default: Any, doc: str, least: int = 1) -> Any:
    """A field with a default, one sentence that ``explain`` prints beside it, and for a count its least value."""
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True, slots=True)
class DeploymentLimits:
    """Every capacity and deadline of the deployment as a whole. Bytes are bytes, ``_s`` are seconds."""

    max_inflight: int = limit(1024, "Most requests that are admitted and not yet released; further requests wait.")
    max_queued: int = limit(
        1024, "Most requests that wait to be admitted; beyond that the answer is 429. With 0 no request waits.", 0
    )
    max_queued_bytes: int = limit(
        64 << 20, "Most bytes of texts and numbers in the waiting requests; beyond that the answer is 429."
    )
    max_per_key: int | None = limit(
        None, "Most requests of one API key, waiting requests included; beyond that the answer is 429."
    )
    priority_ageing_s: float = limit(
        10.0, "A waiting request gains one level of priority each time this period passes."
    )
    deadline_s: float = limit(
        600.0, "Deadline of a request, from its head to its terminal event; a request may name an earlier one."
    )
    max_body_bytes: int = limit(64 << 20, "Largest HTTP body, media included; beyond that the answer is 413.")
    inline_body_bytes: int = limit(256 << 10, "Larger JSON bodies are parsed in the media process.")
    sink_bytes: int = limit(
        16 << 20, "Most output that waits for one slow client; beyond that the client's request is cancelled."
    )
    query_timeout_s: float = limit(
        10.0,
        "Longest wait for a worker's answer to a query that has no time limit of its own (counters have 1 s).",
    )
    stop_grace_s: float = limit(1.5, "Time that a worker has to end after a stop message, and again after SIGTERM.")
    drain_s: float = limit(30.0, "Time that requests in flight have to finish when the server is told to stop.")
    release_timeout_s: float = limit(
        60.0, "Time that a worker has to release a request that is over; a worker that does not is replaced."
    )
    max_resumes: int = limit(
        3,
        "How often a request is resumed after a worker's death; with 0 it fails at once, with 1 at the next death.",
        0,
    )
    resume_wait_s: float = limit(
        60.0, "Longest time that a request waits for a live replica to be resumed on; then the answer is 503."
    )
    restart_delay_s: float = limit(
        0.1, "Pause before the first restart of a worker; the pause doubles with each failure."
    )
    restart_delay_max_s: float = limit(10.0, "Longest pause between two restarts of a worker.")
    restart_reset_s: float = limit(60.0, "A worker that was ready for this long resets the count of failures.")

    @classmethod
    def docs(cls) -> dict[str, str]:
        """One sentence per field."""
        return {f.name: f.metadata["doc"] for f in fields(cls)}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage as it will run.

    ``engine`` and ``adapter`` are dotted names ``module:attribute`` (``adapter`` empty when the engine needs none).
    ``model`` is an absolute path, ``None`` for a stage without weights. Rank ``k`` of replica
    ``r`` runs on ``devices[r * ranks + k]``, counted around. ``options`` are the declaration's defaults with the
    overlay's changes merged in; ``sampling`` (if given) lies there under the key ``sampling``. ``environments`` has,
    for each of ``devices``, what the process of a worker on it gets on top of its parent's. ``host`` is the address
    that its workers are called at by others, where an edge by TCP leads to them.
    """

    name: str
    index: int
    declaration: Stage
    engine: str
    adapter: str
    model: str | None
    platform: str
    devices: tuple[str, ...]
    dtype: str
    threads: int
    replicas: int
    balancer: str
    strategy: Strategy
    options: Mapping[str, Any]
    limits: Mapping[str, int | None]
    """Of each replica; ``None`` for one that is left open."""
    start_timeout_s: float
    """From process start to Ready; loading shows progress but does not extend it."""
    step_budget_s: float
    """A worker with work that shows no sign of life for so long counts as dead: a step may take so long, not more."""
    compile_budget_s: float
    """The same for the first steps of a life, if it is longer."""
    environments: tuple[Mapping[str, str], ...]
    host: str
    worker_devices: tuple[str, ...] = ()
    """What each of ``devices`` is called in a worker's own process, where that differs."""
    platform_class: str = "omni_actors.platforms.cpu.platform:CpuPlatform"
    """Dotted name of :attr:`platform`'s class, which its workers ask too."""
    platform_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """A value for every one of the platform's options."""
    collectives: str = ""
    """What the ranks of a replica compute together by; empty for an engine that starts its ranks itself."""
    transports: tuple[str, ...] = ()
    """Ways in which its platform hands a tensor to another process without the host."""
    balancer_class: str = "omni_actors.stages.balancers:LeastQueue"
    """Dotted name of :attr:`balancer`'s class."""
    announced: bool = False
    """Whether a plug-in brings its engine by name: then the class must say which contract it was written for."""

    @property
    def recovery(self) -> Recovery:
        """How a request goes on after a death: see :attr:`Stage.recovery`. The first half of a split stage has nothing
        of its own to go on with."""
        if self.name.endswith(PREFILL):
            return "replay"
        kind = self.declaration.engine
        return self.declaration.recovery or ("prefix" if kind == "autoregressive" else "replay")

    @property
    def is_media(self) -> bool:
        """Whether this is the implicit stage that decodes and encodes media."""
        return self.name == MEDIA_STAGE

    @property
    def constrains(self) -> bool:
        """Whether its engine can hold an answer to a schema or a grammar."""
        return self.declaration.engine == VLLM

    @property
    def device(self) -> str:
        """The device of replica 0."""
        return self.devices[0]

    def device_of(self, replica: int, rank: int = 0) -> str:
        return self.devices[self._place(replica, rank)]

    def worker_device_of(self, replica: int, rank: int = 0) -> str:
        """What the process of that rank calls its device."""
        return (self.worker_devices or self.devices)[self._place(replica, rank)]

    def environment_of(self, replica: int, rank: int = 0) -> Mapping[str, str]:
        return self.environments[self._place(replica, rank)]

    def layout_of(self, replica: int) -> Layout:
        """The replica's ranks. No rank of another replica is among their groups."""
        return lay_out(self.strategy, [self.device_of(replica, rank) for rank in range(self.strategy.ranks)])

    def ranks_of(self, replica: int) -> tuple[RankPlace, ...]:
        """The processes of the replica, if the first one is to start others."""
        if not self.collectives:
            return ()
        return tuple(
            RankPlace(self.worker_device_of(replica, rank), dict(self.environment_of(replica, rank)))
            for rank in range(self.strategy.ranks)
        )

    def _place(self, replica: int, rank: int) -> int:
        return (replica * self.strategy.ranks + rank) % len(self.devices)


class EdgePlan(EdgeSpec, kw_only=True, frozen=True):
    """An edge as it will run: what workers are told of it, and what only the plan says.

    ``index`` is the edge's place in :attr:`Plan.edges`; ``target`` is the consuming stage.
    """

    on_death: Literal["retain", "recompute"] = "recompute"

    def spec(self) -> EdgeSpec:
        """Return the part that workers are told."""
        return msgspec.convert(self, EdgeSpec, from_attributes=True)


PREFILL = "-prefill"
"""End of the name of a split stage's first half (no declared stage can be called so)."""


def stage_path(name: str) -> str:
    """A stage in provenance and settings: the first half of a split one is below the other."""
    return f"stages.{name.removesuffix(PREFILL)}.prefill" if name.endswith(PREFILL) else f"stages.{name}"


def edge_path(source: str, target: str, port: str) -> str:
    """An edge in provenance and settings: by where it ends, as a port has one. The media stage's are beside those. The
    ports of a split stage are still called its own."""
    return f"edges.{target.removesuffix(PREFILL)}.{port}" + (f" ({MEDIA_STAGE})" if source == MEDIA_STAGE else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole deployment.

    ``stages[i].index == i`` and ``edges[i].index == i``. The implicit stage :data:`MEDIA_STAGE` is among ``stages``
    when a task takes media or gives audio. ``provenance`` maps a dotted path (``stages.llm.threads``) to its origin.
    """

    name: str
    pipeline: Pipeline
    model: str | None
    served_model_name: str
    platform: str
    stages: tuple[StagePlan, ...]
    edges: tuple[EdgePlan, ...]
    tasks: Mapping[str, Task]
    voices: tuple[str, ...]
    sample_rate: int | None
    languages: tuple[str, ...]
    limits: DeploymentLimits
    provenance: Mapping[str, Origin]
    checkpoint: str | None = None
    """The public name that the model was asked for by; :attr:`model` is then its place in the Hugging Face cache."""
    subgraphs: dict[Any, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The parts of the plan that requests have needed so far: see :func:`~omni_actors.pipelines.subgraph.subgraph`."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that its stages have, by which requests ask for them."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.options.get("loras") or ()))

    def stage(self, name: str) -> StagePlan:
        """The stage of that name; ``KeyError`` if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def input_limit(self, task: str, modality: str) -> float | None:
        """The most that one input of a task may have, as the stage that takes it says: characters of a ``text``,
        seconds of an ``audio`` clip. ``None`` without such a bound."""
        where = self.tasks[task].entries.get(modality)
        if where is None:
            return None
        stage = self.stage(where.partition(".")[0])
        limit = stage.options.get(stage.declaration.input_limits.get(modality, ""))
        return None if limit is None else float(limit)

    @property
    def media(self) -> StagePlan | None:
        """The implicit media stage, if this deployment has one."""
        return next((s for s in self.stages if s.name == MEDIA_STAGE), None)

    def hello(self, stage: str, replica: int, incarnation: int, *, log_level: str = "INFO") -> Hello:
        """The whole configuration of one worker: all edges of its stage, whichever a request will use."""
        it = self.stage(stage)
        return Hello(
            version=PROTOCOL_VERSION,
            stage=it.name,
            replica=replica,
            incarnation=incarnation,
            engine=it.engine,
            adapter=it.adapter,
            model=it.model,
            device=it.worker_device_of(replica),
            dtype=it.dtype,
            threads=it.threads,
            options=dict(it.options),
            limits={name: limit for name, limit in it.limits.items() if limit is not None},
            inputs=tuple(e.spec() for e in self.edges if e.target == it.name),
            outputs=tuple(e.spec() for e in self.edges if e.source == it.name),
            host=it.host,
            log_level=log_level,
            platform=it.platform_class,
            platform_options=dict(it.platform_options),
            strategy={axis: degree for axis, degree in it.strategy.degrees().items() if degree > 1},
            ranks=it.ranks_of(replica),
            collectives=it.collectives,
            announced=it.announced,
        )
