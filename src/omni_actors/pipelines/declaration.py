"""Frozen declarations of a pipeline: its stages, edges and tasks, independent of the machine.

The ``pipeline.py`` of a model family makes one :class:`Pipeline`. Declarations name engines, adapters and bridges by
dotted string (``package.module:attribute``), so that declaring a pipeline imports no model code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from omni_actors.pipelines.old_fields import takes_old_fields
from omni_actors.protocol.options import Option

Mode = Literal["chunk", "full"]
Recovery = Literal["prefix", "replay", "none"]


@dataclass(frozen=True, slots=True)
class Port:
    """A named input of a stage.

    An optional port may stay without a source in a request's subgraph. A port of mode ``full`` takes its whole input at
    once; a port of mode ``chunk`` takes pieces as they come, or the whole.

    A stage must take the pieces of all its ports in the order in which the pieces come, and keep them (see
    ``Engine.feed``). When one producer feeds two ports, directly or through other stages, the producer waits for
    credits of the slower port: a consumer that left the pieces of one port until the other port has ended would wait
    for ever.
    """

    name: str
    kind: str
    required: bool = True
    mode: Mode = "full"
    doc: str = ""


@takes_old_fields
@dataclass(frozen=True, slots=True)
class Stage:
    """A component of a pipeline, with one engine kind and one time budget per step.

    Args:
        name: The stage's name; an identifier.
        engine: An engine kind (``autoregressive``, ``generation``) for which the platform has a class, or a dotted
            name.
        adapter: The dotted name of the family's class that the engine drives; empty where the engine needs none.
        ports: The stage's inputs.
        sections: The parameter sections of a request that the stage reads.
        emits: The modality of the stage's output that clients may get (``text``, ``audio``, …); ``None`` for an inner
            stage.
        weight: The stage's share of CPU threads beside stages that run at the same time.
        options: The options of the adapter that a deploy file may change, by name.
        input_limits: By modality, the option that bounds one input of a request: the characters of a ``text``, the
            seconds of an ``audio`` clip. A larger input is refused before any work for the request begins; the stage
            checks the input nevertheless.

    Example:
        >>> speed = Option(1.0, "Factor of the speaking rate.", least=0.25)
        >>> stage = Stage("talker", "generation", "my_model.talker:Talker", emits="audio", options={"speed": speed})
        >>> stage.options["speed"].default
        1.0
    """

    name: str
    engine: str
    adapter: str = ""
    ports: tuple[Port, ...] = ()
    sections: tuple[str, ...] = ()
    emits: str | None = None
    model: str = ""
    """Sub-folder (or file) of the model path that this stage loads; empty for the whole folder."""
    weight: float = 1.0
    dtypes: tuple[str, ...] = ()
    """The dtypes that the stage can compute in; empty for every dtype of the platform."""
    options: Mapping[str, Option] = field(default_factory=dict)
    input_limits: dict[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    """For an engine by dotted name that runs other engines in itself: their kinds, whose options the stage has too."""
    recovery: Recovery | None = None
    """How a request goes on after the death of a worker that held the request. ``prefix``: the stage continues after
    the output that the worker reported (an autoregressive stage with ``Work.prefix``). ``replay``: the stage computes
    the same output again from the start, and the part that the client already has is left out. ``none``: an output of
    which the client has a part cannot be continued. ``None`` means ``prefix`` for engines of kind ``autoregressive``,
    else ``replay``."""
    network: str = ""
    """Dotted name of a pure function ``(folder: Path) -> Network`` (:class:`~omni_actors.pipelines.strategy.Network`)
    that reads the sizes that parallel degrees must divide from ``config.json``, without torch. Empty where the family's
    code cannot split its computation."""
    step_budget_s: float | None = None
    """Seconds that a step may take before the worker counts as stuck; ``None`` for the default of the engine kind."""
    separable: bool = False
    """Whether a deploy file may give the stage a prefill pool: true for an autoregressive stage whose ports get nothing
    once the prompt is complete."""
    vllm: str = ""
    """Dotted name of the stage's adapter where vLLM computes the stage: a
    :class:`~omni_actors.worker.engines.autoregressive.adapter.PromptAdapter`. Empty: vLLM does not."""
    host: bool = False
    """Whether the stage computes on no device: its platform is ``cpu`` unless a setting names another."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A typed link from ``source`` (stage) into ``target`` (``stage.port``).

    Args:
        source: The producing stage.
        target: The consuming stage and port, as ``stage.port``.
        kind: The kind of the payloads.
        mode: ``chunk`` hands each piece on as it comes, ``full`` hands on all pieces at the end.
        capacity: How many chunks of one request may be under way.
        bridge: The dotted name of a factory without arguments of :class:`omni_actors.worker.bridge.Bridge`, which the
            consumer's worker calls; ``None`` for an edge whose payloads arrive unchanged.
        connector: The way in which payloads travel.
        on_death: What follows the death of a consumer: its payloads are sent again (``retain``), or the stages above
            compute again (``recompute``).

    Example:
        >>> edge = Edge("talker", "codec.codes", "codes", mode="chunk")
        >>> edge.stage, edge.port
        ('codec', 'codes')
    """

    source: str
    target: str
    kind: str
    mode: Mode = "full"
    capacity: int = 64
    bridge: str | None = None
    connector: str = "shared_memory"
    on_death: Literal["retain", "recompute"] = "recompute"

    @property
    def stage(self) -> str:
        """The consuming stage."""
        return self.target.split(".", 1)[0]

    @property
    def port(self) -> str:
        """The consuming stage's port."""
        return self.target.split(".", 1)[1]


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a client may request, such as ``chat`` or ``speech``.

    Args:
        name: The task's name.
        entries: By input modality, the ``stage`` or ``stage.port`` at which inputs enter.
        outputs: By output modality, the stage that emits the output.

    A request's subgraph lies between the entries and the outputs of the request.
    """

    name: str
    entries: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """Facts from one checkpoint's folder that change the declaration of its family. ``None`` changes nothing.

    Args:
        lacks: Stages that the checkpoint does not have. These stages are dropped, together with their edges, the inputs
            and outputs of tasks that need the stages, and tasks that keep no input or no output.
        tasks: Tasks that replace the declared ones.
        options: New defaults of declared options, as stage → option → value.
        notes: Sentences for the operator, such as how to get what the checkpoint lacks.

    Example:
        >>> facts = PipelineFacts(voices=("anna",), options={"talker": {"max_frames": 2000}})
        >>> facts.lacks
        ()
    """

    voices: tuple[str, ...] | None = None
    languages: tuple[str, ...] | None = None
    sample_rate: int | None = None
    speech_fields: tuple[str, ...] | None = None
    task_types: tuple[str, ...] | None = None
    tasks: tuple[Task, ...] | None = None
    lacks: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A request parameter of one model family.

    Clients set the parameter in the field ``model_parameters`` of an HTTP body (vLLM's name ``vllm_xargs`` works too),
    or in the section ``parameters`` of a request. A stage that reads the section gets a value for every parameter.

    Args:
        name: The parameter's name.
        default: The value of requests that do not set the parameter. A request's value must have the default's type:
            ``bool``, ``int``, ``float`` or ``str``.
        doc: One sentence about the parameter.
        least: The smallest number that the parameter takes; ``None`` for no bound.
        most: The largest number that the parameter takes; ``None`` for no bound.
        choices: The only texts that the parameter takes; empty for any.

    Example:
        >>> Parameter("gap_ms", 50, "Milliseconds of silence after each key.", least=0, most=1000).default
        50
    """

    name: str
    default: bool | int | float | str
    doc: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


_SPOKEN = ("text", "voice", "seed", "reference")
"""Fields of the section ``speech`` that every family with speech knows. (A pipeline's tasks say whether it takes
clips.)"""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A model's directed acyclic graph of stages, and the tasks that the graph serves.

    Example:
        >>> reader = Stage("reader", "my_model.engines:Reader", emits="text")
        >>> pipeline = Pipeline("echo", (reader,), tasks=(Task("chat", {"text": "reader"}, {"text": "reader"}),))
        >>> pipeline.tasks[0].outputs
        {'text': 'reader'}
    """

    name: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...] = ()
    tasks: tuple[Task, ...] = ()
    architectures: tuple[str, ...] = ()
    """Entries of ``architectures`` in a ``config.json`` that this pipeline serves."""
    checkpoints: tuple[str, ...] = ()
    """Public names of checkpoints (``organisation/name``). A checkpoint is planned without weights, and fetched before
    it is served."""
    files: tuple[str, ...] = ()
    """Patterns of further files that are fetched from a checkpoint's repository, beside safetensors, JSON and the files
    of the tokenizer."""
    describe: str | None = None
    """Dotted name of a pure function ``(folder: Path) -> PipelineFacts``. The serving process calls the function if the
    folder exists, or if the pipeline has :attr:`weights` of its own. The function reads ``config.json`` and other small
    files, imports no torch, and raises ``OmniError`` (or ``OSError``, ``KeyError``, ``ValueError``) for a folder that
    is not a checkpoint of this family."""
    voices: tuple[str, ...] = ()
    sample_rate: int | None = None
    """Sample rate of the audio output, in Hz."""
    languages: tuple[str, ...] = ()
    speech_fields: tuple[str, ...] | None = None
    """Fields of the section ``speech`` that a request may set, beside the fields that every family with speech knows.
    API handlers refuse the other fields. ``None`` lets all fields pass; stages then refuse the fields that they do not
    support."""
    task_types: tuple[str, ...] = ()
    """Supported values of ``speech.task_type`` (``custom_voice``, ``voice_design``, ``clone``), the default first;
    empty where the family has no task types."""
    parameters: tuple[Parameter, ...] = ()
    """Request parameters of this family. A parameter of another name is refused by name."""
    weights: str | None = None
    """Dotted name of a function without arguments that returns the folder of the weights when no path is named."""
    doc: str = ""

    def honours(self, field: str) -> bool:
        """Return whether a request may set a field of the section ``speech``."""
        return self.speech_fields is None or field in _SPOKEN or field in self.speech_fields
