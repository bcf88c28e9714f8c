"""The closed schema of a deployment's settings: which keys there are, what they take, and what each means.

It is made for one pipeline and the platforms that it runs on, since their stages, options and limits are its keys. A
deploy file and ``--set`` go through the same one.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any

from omni_actors.pipelines.declaration import Edge, Mode, Pipeline, Stage
from omni_actors.pipelines.extensions import BALANCERS, CONNECTORS, Extension
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
"""What a request leaves to the deployment when it says nothing: name → (least, most, meaning)."""


BUDGETS_DOC = {
    "start_timeout_s": "Longest time from the start of a worker to its being ready.",
    "step_budget_s": "Longest time without progress of a worker that has work; a slower worker is killed.",
    "compile_budget_s": "The same for the first steps of a worker, which may compile.",
}
"""What a worker may take: name → meaning."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key that takes a value. ``check`` returns the value to keep or raises ``ValueError`` saying what it takes."""

    check: Callable[[Any], Any]
    doc: str = ""
    whole: bool = False
    """Whether keys below it are part of the value."""
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


def settings_schema(
    pipeline: Pipeline, platforms: Iterable[OmniPlatform], media: Stage | None, unused: Iterable[str] = ()
) -> Group:
    """Every key that a deploy file for this pipeline may have. ``media`` is the implicit stage, if there is one;
    ``unused`` are platforms whose options may be there and are not looked at."""
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
    return Group({name: Leaf(_takes(option), option.doc, aliases=option.aliases) for name, option in options.items()})


def deployment_limits() -> dict[str, Leaf | Group]:
    found: dict[str, Leaf | Group] = {}
    for item in fields(DeploymentLimits):
        assert item.default is not MISSING
        check: Callable[[Any], Any]
        if item.default is None:
            check = optional(integer(item.metadata["least"]))
        elif isinstance(item.default, float):
            check = number(0.001)
        else:
            check = size if item.name.endswith("_bytes") else integer(item.metadata["least"])
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
        del keys["model"]  # it has no weights
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
    """Return the key of an option: what values it takes. An option whose name ends in ``_bytes`` takes a size."""
    check = size if name.endswith("_bytes") else _takes(option)
    return Leaf(check, option.doc, aliases=option.aliases)


def _takes(option: Option) -> Callable[[Any], Any]:
    return one_of(*option.choices) if option.choices else like(option.default, option.type, option.least)


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


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("takes a text")
    return value


def strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("takes a list of texts")
    return tuple(value)


def address(value: Any) -> str:
    try:
        it = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("takes an IP address in numbers") from None
    if it.is_unspecified or it.is_multicast:  # it is listened on, and told to those who call
        raise ValueError("takes the IP address of one interface")
    return str(it)


def environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise ValueError("takes names with values")
    if bad := [k for k, v in value.items() if not isinstance(v, str | int | float) or isinstance(v, bool)]:
        raise ValueError(f"takes texts and numbers as values; put quotes around that of {bad[0]}")
    if bad := [k for k, v in value.items() if not k or "=" in k or "\0" in f"{k}{v}"]:
        raise ValueError(f"takes names and values that the system knows, which {bad[0]!r} is not")
    return {k: str(v) for k, v in value.items()}


def integer(least: int, most: int = (1 << 63) - 1) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"takes a whole number of at least {least}")
        if value > most:
            raise ValueError(f"takes a whole number of at most {most}")
        return value

    return check


def optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, or null."""
    return lambda value: None if value is None else check(value)


def number(least: float, most: float | None = None) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or value < least or (most is not None and value > most):
            raise ValueError(f"takes a number of at least {least:g}" + (f" and at most {most:g}" if most else ""))
        return float(value)

    return check


def one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"takes {' or '.join(choices)}")
        return str(value)

    return check


def one_named(extension: Extension) -> Callable[[Any], str]:
    """The name of one of this package's, or of a plug-in that is installed."""

    def check(value: Any) -> str:
        if value in (names := extension.names()):
            return str(value)
        close = get_close_matches(str(value), names, n=1, cutoff=0.6)
        raise ValueError(f"takes {' or '.join(names)}" + (f" (did you mean '{close[0]}'?)" if close else ""))

    return check


_CONNECTOR = Leaf(
    one_named(CONNECTORS),
    "How payloads travel: in a machine, there on the device, between two, or a plug-in's way.",
)

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(value: Any) -> int:
    """Bytes: a whole number, or a text such as ``64 MiB``."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+)\s*([A-Za-z]*)", value.strip())):
        unit = _UNITS.get(match[2].upper())
        value = int(match[1]) * unit if unit else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("takes a number of bytes, such as 67108864 or 64MiB")
    return value


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a mapping"}


def like(default: Any, kind: type | None = None, least: float | None = None) -> Callable[[Any], Any]:
    """A check that a value is of the same kind as ``default``; of ``kind``, or ``None``, where that is given. Numbers
    are finite and at least ``least``."""
    optional = default is None or kind is not None
    wanted = type(default) if kind is None else kind
    takes = f"takes {_KINDS.get(wanted, 'a list')}" + ("" if least is None else f" of at least {least:g}")
    takes += ", or null" if optional else f", as its default {default!r} is"

    def check(value: Any) -> Any:
        if optional and value is None:
            return None
        if wanted is float and type(value) is int:
            value = float(value)
        elif wanted is tuple and type(value) is list:
            value = tuple(value)
        if type(value) is not wanted:
            raise ValueError(takes)
        if isinstance(value, int | float) and (not math.isfinite(value) or (least is not None and value < least)):
            raise ValueError(takes)
        return value

    return check
