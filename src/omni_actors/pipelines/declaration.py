"""Frozen declarations: what a pipeline is, independent of where it runs.

A model family's ``pipeline.py`` builds one :class:`Pipeline` out of these. They name engines, adapters and bridges by
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
    once; one of mode ``chunk`` takes pieces as they come, or the whole.

    A stage takes all its ports as they come, in whatever order that is. When the same stage feeds two of them, directly
    or through others, it waits for the slower one's credits: a consumer that leaves the pieces on one port until the
    other has ended waits for ever. It must take them and keep them (see ``Engine.feed``).
    """

    name: str
    kind: str
    required: bool = True
    mode: Mode = "full"
    doc: str = ""


@takes_old_fields
@dataclass(frozen=True, slots=True)
class Stage:
    """A component with one engine kind and one budget.

    ``engine`` is a kind (``autoregressive``, ``generation``) that the platform resolves to a class, or a dotted name.
    ``adapter`` is the family's class that the engine drives (empty where it needs none). ``sections`` are the request's
    parameter sections it reads. ``emits`` is the modality a client may see of it (``text``, ``audio``, …), ``None`` for
    inner stages.
    ``weight`` is its share of CPU threads beside stages that run at the same time. ``options`` are the options of the
    adapter that a deploy file may change, by name. ``input_limits`` names, by modality, the option that bounds one
    input that a request brings to this stage: the characters of a ``text``, the seconds of an ``audio`` clip. An input
    over it is refused before anything is done for the request; the stage checks it nevertheless.
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
    """What it can compute in; empty for whatever its platform can."""
    options: Mapping[str, Option] = field(default_factory=dict)
    input_limits: dict[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    """Of an engine by dotted name that runs others in itself: their kinds. The stage has their options too."""
    recovery: Recovery | None = None
    """How a request goes on after the death of a worker that held it. ``prefix``: the stage takes up what was reported
    of it (an autoregressive stage with ``Work.prefix``). ``replay``: it computes again from the start, and the same, so
    that what the client has can be left out. ``none``: what the client has of it cannot be continued. ``None`` is
    ``prefix`` for engines of kind ``autoregressive``, else ``replay``."""
    network: str = ""
    """Dotted name of a pure function ``(folder: Path) -> Network`` (:class:`~omni_actors.pipelines.strategy.Network`):
    what parallel degrees must divide, read from ``config.json`` without torch. Empty where the family's code cannot
    split what it computes."""
    step_budget_s: float | None = None
    """Longest that a step may take before the worker counts as stuck; ``None`` is its engine kind's usual."""
    separable: bool = False
    """Whether a deploy file may have its prompts computed in a pool of their own: an autoregressive stage to which
    nothing comes on its ports once its prompt is complete."""
    vllm: str = ""
    """Dotted name of the adapter that it has where vLLM computes it: a
    :class:`~omni_actors.worker.engines.autoregressive.adapter.PromptAdapter`. Empty: vLLM does not."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A typed link from ``source`` (stage) into ``target`` (``stage.port``).

    ``capacity`` is how many chunks of one request may be under way. ``bridge`` is a dotted name of a zero-argument
    factory of :class:`omni_actors.worker.bridge.Bridge`; it runs in the consumer's worker. ``on_death`` says what
    follows when a consumer dies: resend what it had (``retain``) or restart upstream (``recompute``).
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
        return self.target.split(".", 1)[0]

    @property
    def port(self) -> str:
        return self.target.split(".", 1)[1]


@dataclass(frozen=True, slots=True)
class Task:
    """Something a client may ask for.

    ``entries`` maps each input modality to ``stage`` or ``stage.port`` where it enters; ``outputs`` maps each output
    modality to the stage that emits it. The request's subgraph is what lies between.
    """

    name: str
    entries: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """What one checkpoint's folder says beyond its family's declaration. ``None`` leaves what is declared.

    ``lacks`` names stages that this checkpoint does not have: they go, with their edges, and with the inputs and
    outputs of tasks that need them (a task without any goes too). ``tasks`` are then the tasks in the place of the
    declared ones. ``options`` are defaults of a stage's options, as stage → option → value; each must be declared.
    """

    voices: tuple[str, ...] | None = None
    languages: tuple[str, ...] | None = None
    sample_rate: int | None = None
    speech_fields: tuple[str, ...] | None = None
    task_types: tuple[str, ...] | None = None
    tasks: tuple[Task, ...] | None = None
    lacks: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request that is this family's own, in the field ``model_parameters`` of HTTP bodies (vLLM's name
    ``vllm_xargs`` works too) and in section ``parameters`` of a request.

    It takes what is of its ``default``'s type (``bool``, ``int``, ``float`` or ``str``); a number from ``least`` to
    ``most``, a text of ``choices``, where those are given. A stage that reads the section gets a value for each.
    """

    name: str
    default: bool | int | float | str
    doc: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


_SPOKEN = ("text", "voice", "seed", "reference")
"""Fields of the section ``speech`` that every speaker knows. (Whether it takes a clip its tasks say.)"""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A model's directed acyclic graph of stages, declared once."""

    name: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...] = ()
    tasks: tuple[Task, ...] = ()
    architectures: tuple[str, ...] = ()
    """Values of ``config.json``'s ``architectures`` that this pipeline serves."""
    checkpoints: tuple[str, ...] = ()
    """Public names of real checkpoints (``organisation/name``): planned without weights, fetched to be served."""
    files: tuple[str, ...] = ()
    """Patterns of further files in a checkpoint's repository that its stages read, beside safetensors, JSON and the
    tokenizer's: they are fetched too."""
    describe: str | None = None
    """Dotted name of a pure function ``(folder: Path) -> PipelineFacts``. It is called in the serving process when the
    folder exists: it reads ``config.json`` and other small files, imports no torch, and raises ``OmniError`` (or
    ``OSError``, ``KeyError``, ``ValueError``) for a folder that it cannot make out."""
    voices: tuple[str, ...] = ()
    sample_rate: int | None = None
    """Hz of its audio output."""
    languages: tuple[str, ...] = ()
    speech_fields: tuple[str, ...] | None = None
    """Fields of the section ``speech`` that a request may set, beside those that every speaker knows. The surfaces
    refuse the others; ``None`` lets all pass, and the stages refuse what they cannot do."""
    task_types: tuple[str, ...] = ()
    """Values of ``speech.task_type`` that it does (``custom_voice``, ``voice_design``, ``clone``), the usual one first;
    empty where the family knows no such distinction."""
    parameters: tuple[Parameter, ...] = ()
    """What a request may say to this family beside what every model knows. Others are refused by name."""
    weights: str | None = None
    """Dotted name of a function without arguments that gives the folder of its weights when no path is named."""
    doc: str = ""

    def honours(self, field: str) -> bool:
        """Whether a request may set this field of the section ``speech``."""
        return self.speech_fields is None or field in _SPOKEN or field in self.speech_fields
