"""The frozen plan of a deployment: a pipeline that is placed, sized and bounded. The orchestrator and stages work from
it.

:func:`omni_actors.pipelines.factory.resolve` makes a plan once, and a plan never changes: another configuration is
another plan. The mappings of a plan are read-only views. Every default is filled in, and :attr:`Plan.provenance` names
the origin of every value.
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
"""Name of the implicit stage that decodes the media of requests and encodes the media of responses."""

LOOPBACK = "127.0.0.1"

OriginKind = Literal["default", "declaration", "model", "platform", "overlay", "environment", "command line"]


class PlanError(OmniError):
    """An impossible deployment: the message says what is wrong, where, and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorInfo(message=message, type="configuration_error", code="bad_plan", status=500))


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value.

    Args:
        kind: The source: a default, the declaration, the model's folder, and so on.
        where: ``file:line``, the text of a command-line option, a variable with its value, a platform's name, or a
            folder.

    Example:
        >>> str(Origin("overlay", "deploy.yaml:3"))
        'overlay deploy.yaml:3'
    """

    kind: OriginKind
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}" if self.where else self.kind


def limit(default: Any, doc: str, least: int = 1) -> Any:
    """Make a field with a default, the sentence that ``explain`` prints, and the least value of a count."""
    return field(default=default, metadata={"doc": doc, "least": least})


@dataclass(frozen=True, slots=True)
class DeploymentLimits:
    """The capacities and deadlines of a deployment as a whole. Names in ``_bytes`` are bytes, names in ``_s``
    seconds."""

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
        16 << 20,
        "Most output that waits for one slow client; beyond that the client's request is cancelled. Pictures do not "
        "count: no more can wait than the request asked for.",
    )
    picture_files_bytes: int = limit(
        256 << 20,
        "Most bytes of pictures that wait to be fetched by URL; the oldest is dropped first. With 0 there are no URLs.",
        0,
    )
    picture_files_s: float = limit(3600.0, "Time for which a picture can be fetched by its URL.")
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
        """Return the sentence about each field, by the field's name."""
        return {f.name: f.metadata["doc"] for f in fields(cls)}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage as it will run.

    ``engine`` and ``adapter`` are dotted names ``module:attribute`` (``adapter`` is empty when the engine needs none).
    ``model`` is an absolute path, or ``None`` for a stage without weights. Rank ``k`` of replica ``r`` runs on
    ``devices[r * ranks + k]``, counted around. ``options`` are the declared defaults with the changes of the deploy
    file and the command line; the deployment's sampling parameters, if it sets any, lie there under the key
    ``sampling``. ``environments`` has an entry for each of ``devices``: the variables that a worker on that device gets
    beside its parent's. ``host`` is the address at which edges by TCP reach the stage's workers.
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
    """Capacities of each replica; ``None`` for a capacity without a bound."""
    start_timeout_s: float
    """Seconds from the start of a worker's process to its frame Ready. Progress of loading does not extend them."""
    step_budget_s: float
    """Seconds that a step may take: a worker with work and without progress for so long counts as dead."""
    compile_budget_s: float
    """Seconds that the first steps of an incarnation may take, if they are more than ``step_budget_s``."""
    environments: tuple[Mapping[str, str], ...]
    host: str
    worker_devices: tuple[str, ...] = ()
    """The name of each of ``devices`` in a worker's own process, where the names differ."""
    platform_class: str = "omni_actors.platforms.cpu.platform:CpuPlatform"
    """Dotted name of the class of :attr:`platform`, which the workers use too."""
    platform_options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """A value for every option of the platform."""
    collectives: str = ""
    """The backend by which the ranks of a replica compute together; empty for an engine that starts its ranks
    itself."""
    transports: tuple[str, ...] = ()
    """The ways in which the platform hands a tensor to another process without the host."""
    balancer_class: str = "omni_actors.stages.balancers:LeastQueue"
    """Dotted name of the class of :attr:`balancer`."""
    announced: bool = False
    """Whether a plug-in announces the engine by name: the engine's class must then state its contract's version."""

    @property
    def recovery(self) -> Recovery:
        """How a request goes on after the death of a worker: see :attr:`Stage.recovery`. The prefill half of a split
        stage always computes again."""
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
        """Whether the engine can make an answer follow a schema or a grammar."""
        return self.declaration.engine == VLLM

    @property
    def device(self) -> str:
        """The device of replica 0."""
        return self.devices[0]

    def device_of(self, replica: int, rank: int = 0) -> str:
        return self.devices[self._place(replica, rank)]

    def worker_device_of(self, replica: int, rank: int = 0) -> str:
        """Return the name of a rank's device in the rank's own process."""
        return (self.worker_devices or self.devices)[self._place(replica, rank)]

    def environment_of(self, replica: int, rank: int = 0) -> Mapping[str, str]:
        return self.environments[self._place(replica, rank)]

    def layout_of(self, replica: int) -> Layout:
        """Return the layout of a replica's ranks. Groups of ranks never cross replicas."""
        return lay_out(self.strategy, [self.device_of(replica, rank) for rank in range(self.strategy.ranks)])

    def ranks_of(self, replica: int) -> tuple[RankPlace, ...]:
        """Return the processes of a replica that its first process starts; empty where the engine starts its own
        ranks."""
        if not self.collectives:
            return ()
        return tuple(
            RankPlace(self.worker_device_of(replica, rank), dict(self.environment_of(replica, rank)))
            for rank in range(self.strategy.ranks)
        )

    def _place(self, replica: int, rank: int) -> int:
        return (replica * self.strategy.ranks + rank) % len(self.devices)


class EdgePlan(EdgeSpec, kw_only=True, frozen=True):
    """An edge as it will run: the part that workers are told, and the part that only the plan has.

    ``index`` is the edge's place in :attr:`Plan.edges`; ``target`` is the consuming stage.
    """

    on_death: Literal["retain", "recompute"] = "recompute"

    def spec(self) -> EdgeSpec:
        """Return the part that workers are told."""
        return msgspec.convert(self, EdgeSpec, from_attributes=True)


def _adapters(option: Any) -> list[str]:
    """Return the names in a stage's option ``loras``: a mapping, a list of names, or a text ``name=path, …``."""
    if isinstance(option, str):
        return [name.strip() for part in option.split(",") if (name := part.partition("=")[0]).strip()]
    return list(option or ())


PREFILL = "-prefill"
"""End of the name of the prefill half of a split stage. (No declared stage can have such a name.)"""


def stage_path(name: str) -> str:
    """Return a stage's path in settings and provenance. The prefill half of a split stage lies below the stage.

    >>> stage_path("llm"), stage_path("llm-prefill")
    ('stages.llm', 'stages.llm.prefill')
    """
    return f"stages.{name.removesuffix(PREFILL)}.prefill" if name.endswith(PREFILL) else f"stages.{name}"


def edge_path(source: str, target: str, port: str) -> str:
    """Return an edge's path in settings and provenance, made of the port where the edge ends.

    Edges from the media stage have a suffix. Ports of a split stage keep the stage's name.

    >>> edge_path("talker", "codec", "codes")
    'edges.codec.codes'
    """
    return f"edges.{target.removesuffix(PREFILL)}.{port}" + (f" ({MEDIA_STAGE})" if source == MEDIA_STAGE else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole deployment.

    ``stages[i].index == i`` and ``edges[i].index == i``. The implicit stage :data:`MEDIA_STAGE` is among ``stages``
    when a task takes media or gives audio. ``provenance`` maps a dotted path (``stages.llm.threads``) to the origin of
    its value.
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
    """The public name of the checkpoint that was asked for; :attr:`model` is then the checkpoint's place in the Hugging
    Face cache."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator, from the facts of the weights' folder."""
    subgraphs: dict[Any, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """The subgraphs of requests so far: see :func:`~omni_actors.pipelines.subgraph.subgraph`."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters of the stages, by which requests choose them."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in _adapters(stage.options.get("loras"))))

    def stage(self, name: str) -> StagePlan:
        """Return the stage of a name. Raises ``KeyError`` if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def input_limit(self, task: str, modality: str) -> float | None:
        """Return the largest input that a task takes, as the option of the stage at the entry says.

        Args:
            task: The task's name.
            modality: ``text`` (the bound is in characters) or ``audio`` (seconds of a clip).

        Returns:
            The bound, or ``None`` without one.
        """
        where = self.tasks[task].entries.get(modality)
        if where is None:
            return None
        stage = self.stage(where.partition(".")[0])
        limit = stage.options.get(stage.declaration.input_limits.get(modality, ""))
        return None if limit is None else float(limit)

    @property
    def media(self) -> StagePlan | None:
        """The implicit media stage; ``None`` in a deployment without one."""
        return next((s for s in self.stages if s.name == MEDIA_STAGE), None)

    def hello(self, stage: str, replica: int, incarnation: int, *, log_level: str = "INFO") -> Hello:
        """Return the configuration of one worker, with all edges of its stage."""
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
