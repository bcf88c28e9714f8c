"""The closed schema of a deployment's settings: its keys, what each key takes, and what each key means.

A schema is made for one pipeline and the platforms that the pipeline runs on, since the names of stages, options and
limits are keys. A deploy file and ``--set`` go through the same schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from omni_actors.pipelines.declaration import Edge, Mode, Pipeline, Stage
from omni_actors.pipelines.deploy.values import (
    address,
    environment,
    integer,
    like,
    number,
    one_named,
    one_of,
    optional,
    size,
    size_of,
    strings,
    text,
)
from omni_actors.pipelines.extensions import BALANCERS, CONNECTORS
from omni_actors.pipelines.limits import limits_of
from omni_actors.pipelines.plan import MEDIA_STAGE, DeploymentLimits
from omni_actors.pipelines.strategy import STRATEGY_DOC
from omni_actors.platforms.platform import OmniPlatform, platform_options
from omni_actors.protocol.options import Option

SAMPLING_DEFAULTS = {
    "temperature": (0.0, 2.0, "Sampling temperature; 0 takes the likeliest token."),
    "top_p": (0.0, 1.0, "Sample among the likeliest tokens that together have this probability."),
    "top_k": (-1, None, "Sample among this many of the likeliest tokens; 0 or -1 takes all."),
    "min_p": (0.0, 1.0, "Drop tokens whose probability is below this share of the likeliest token's."),
    "repetition_penalty": (0.01, None, "Over 1 makes tokens less likely that occurred before."),
}
"""Sampling parameters with a default of the deployment: name → (least, most, meaning)."""


BUDGETS_DOC = {
    "start_timeout_s": "Longest time from the start of a worker to its being ready.",
    "step_budget_s": "Longest time without progress of a worker that has work; a slower worker is killed.",
    "compile_budget_s": "The same for the first steps of a worker, which may compile.",
}
"""Time budgets of a worker, in seconds: name → meaning."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key that takes a value. ``check`` returns the value to keep, or raises ``ValueError`` that says what it
    takes."""

    check: Callable[[Any], Any]
    doc: str = ""
    whole: bool = False
    """Whether keys below this key are part of the value."""
    aliases: tuple[str, ...] = ()
    """Further names of the key."""


@dataclass(frozen=True, slots=True)
class Group:
    """A key with keys below it."""

    keys: Mapping[str, Leaf | Group]
    doc: str = ""

    def own_name(self, key: str) -> str | None:
        """Return the name under which this group has a key: ``key`` itself, or the key that has it as an alias.

        Args:
            key: One part of a path, as somebody wrote it.

        Returns:
            The key's own name; ``None`` for an unknown key.
        """
        if key in self.keys:
            return key
        return next((name for name, it in self.keys.items() if isinstance(it, Leaf) and key in it.aliases), None)

    def names(self) -> list[str]:
        """Return every key, and every alias."""
        aliases = (alias for it in self.keys.values() if isinstance(it, Leaf) for alias in it.aliases)
        return [*self.keys, *aliases]


_CONNECTOR = Leaf(
    one_named(CONNECTORS),
    "How payloads travel: in a machine, there on the device, between two, or a plug-in's way.",
)


def settings_schema(
    pipeline: Pipeline, platforms: Iterable[OmniPlatform], media: Stage | None, unused: Iterable[str] = ()
) -> Group:
    """Return every key that a deploy file for a pipeline may have.

    Args:
        pipeline: The pipeline, whose stages already have the options of their engines.
        platforms: The platforms that the stages run on.
        media: The implicit media stage; ``None`` where the deployment has none.
        unused: Names of platforms whose options are accepted and not checked, since no stage runs there.
    """
    stages = (*pipeline.stages, *([media] if media else []))
    ports: dict[str, dict[str, Leaf | Group]] = {}
    for edge in pipeline.edges:
        takes = {port.name: port.mode for stage in pipeline.stages if stage.name == edge.stage for port in stage.ports}
        ports.setdefault(edge.stage, {})[edge.port] = _edge(edge, takes[edge.port])
    for stage in pipeline.stages:
        if stage.separable:
            between: dict[str, Leaf | Group] = {"connector": _CONNECTOR}
            ports.setdefault(stage.name, {})["kv"] = Group(between, f"From the prefill pool of stage {stage.name}.")
    options: dict[str, Leaf | Group] = {name: Leaf(lambda value: value, whole=True) for name in unused}
    options |= {platform.name: _platform(platform) for platform in platforms}
    edges: dict[str, Leaf | Group] = {stage: Group(keys) for stage, keys in ports.items()}
    return Group(
        {
            "pipeline": Leaf(
                one_of(pipeline.name), "Name of the pipeline that the file is for; another pipeline is refused."
            ),
            "model": Leaf(text, "Folder or public name of the model, if the command line names none."),
            "platform": Leaf(text, "Platform of every stage that names no platform."),
            "served_model_name": Leaf(text, "Name of the model for clients."),
            "limits": Group(deployment_limits(), "Capacities and deadlines of the whole deployment."),
            "stages": Group({stage.name: _stage(stage) for stage in stages}, "One key per stage."),
            "edges": Group(edges, "One key per edge: the stage.port where it ends."),
            "platforms": Group(options, "Options of each platform that a stage runs on, under its own name."),
        }
    )


def _platform(platform: OmniPlatform) -> Group:
    options = platform_options(platform)
    return Group({name: option_leaf(name, option) for name, option in options.items()})


def deployment_limits() -> dict[str, Leaf | Group]:
    """Return the keys below ``limits``: one per field of :class:`DeploymentLimits`."""
    found: dict[str, Leaf | Group] = {}
    for item in fields(DeploymentLimits):
        assert item.default is not MISSING
        check: Callable[[Any], Any]
        if item.default is None:
            check = optional(integer(item.metadata["least"]))
        elif isinstance(item.default, float):
            check = number(0.001)
        else:
            least = item.metadata["least"]
            check = size_of(least) if item.name.endswith("_bytes") else integer(least)
        found[item.name] = Leaf(check, item.metadata["doc"])
    return found


def _stage(stage: Stage) -> Group:
    keys: dict[str, Leaf | Group] = {
        "engine": Leaf(
            text,
            "Engine kind, or module:Class. A stage that reads a prompt and writes text also takes torch, "
            "vllm and auto.",
        ),
        "model": Leaf(text, "Folder or file of the stage's weights, instead of its place in the model's folder."),
        "platform": Leaf(text, "Platform of the stage."),
        "device": Leaf(text, "Device of every replica."),
        "devices": Leaf(
            strings,
            "Devices, in the order of replicas and their ranks; with fewer devices than replicas of "
            "one rank, the list repeats.",
        ),
        "dtype": Leaf(text, "Data type that the engine computes in."),
        "threads": Leaf(integer(1, 1024), "CPU threads of each replica."),
        "replicas": Leaf(integer(1, 256), "Number of replicas; a replica of one rank is one worker process."),
        "balancer": Leaf(
            one_named(BALANCERS),
            "How requests are spread over replicas: least_queue, round_robin, prefix_cache, or a plug-in's balancer.",
        ),
        **{name: Leaf(number(0.1), doc) for name, doc in BUDGETS_DOC.items()},
        "environment": Leaf(environment, "Environment variables of the workers."),
        "host": Leaf(
            address,
            "Address at which the stage's workers listen for TCP edges; only the workers at the other end are let in.",
        ),
        "strategy": Group(
            {name: Leaf(integer(1), doc) for name, doc in STRATEGY_DOC.items()}, "Parallel degrees inside a replica."
        ),
        "limits": Group(
            {name: Leaf(_limit(name, it), it.doc, aliases=it.aliases) for name, it in limits_of(stage.engine).items()},
            "Capacities of each replica.",
        ),
    }
    if stage.name == MEDIA_STAGE:
        del keys["model"]  # the media stage has no weights
    if stage.options:
        own: dict[str, Leaf | Group] = {name: option_leaf(name, option) for name, option in stage.options.items()}
        keys["options"] = Group(own, "The stage's own options.")
    if "sampling" in stage.sections:
        keys["sampling"] = Group(
            {
                name: Leaf(integer(int(least)) if name == "top_k" else number(least, most), doc)
                for name, (least, most, doc) in SAMPLING_DEFAULTS.items()
            },
            "What requests get that say nothing.",
        )
    if stage.separable:
        first = {key: found for key, found in keys.items() if key not in ("engine", "sampling")}
        keys["prefill"] = Group(first, "A pool of its own for prompts; what is not said here is as for the stage.")
    return Group(keys, stage.doc)


def option_leaf(name: str, option: Option) -> Leaf:
    """Return the key of a stage's option.

    Args:
        name: The option's name. A name that ends in ``_bytes`` makes the key take a size, such as ``64MiB``.
        option: The option.
    """
    return Leaf(_takes(name, option), option.doc, aliases=option.aliases)


def _takes(name: str, option: Option) -> Callable[[Any], Any]:
    check: Callable[[Any], Any]
    if option.choices:
        check = one_of(*option.choices)
    elif name.endswith("_bytes"):
        check = size_of(1 if option.least is None else int(option.least))
    else:
        return like(option.default, option.type, option.least)
    return optional(check) if option.default is None or option.type is not None else check


def _limit(name: str, limit: Option) -> Callable[[Any], Any]:
    check: Callable[[Any], Any] = size if name.endswith("_bytes") else integer(1)
    return optional(check) if limit.default is None else check


def _edge(edge: Edge, takes: Mode) -> Group:
    modes = ("chunk", "full") if takes == "chunk" else ("full",)
    return Group(
        {
            "mode": Leaf(one_of(*modes), "chunk hands each piece on as it comes; full hands on all pieces at the end."),
            "capacity": Leaf(integer(1), "Most chunks of one request that may be under way."),
            "connector": _CONNECTOR,
        },
        f"From stage {edge.source}.",
    )
