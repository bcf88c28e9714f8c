"""Parallel degrees inside one replica of a stage, and the reasons against them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Strategy:
    """The number of devices of one replica along each dimension. Every degree is at least 1.

    The number of replicas is not part of a strategy: replicas share nothing, while the devices of one replica share a
    model.

    Example:
        >>> Strategy(tensor=2, pipeline=2).ranks
        4
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence: int = 1
    cfg: int = 1

    def degrees(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def ranks(self) -> int:
        """The number of devices of a replica. Experts add none: they are shared out among the ranks of data and
        tensor."""
        return math.prod(degree for name, degree in self.degrees().items() if name != "expert")


STRATEGY_DOC = {
    "tensor": "Number of ranks that each layer's weights are split over.",
    "data": "Number of copies of the weights inside one replica, which share its batch.",
    "pipeline": "Number of groups of layers that run one after the other.",
    "expert": "Number of ranks, among those of data and tensor, that the experts of a mixture are shared out to.",
    "sequence": "Number of ranks that a long sequence is split over.",
    "cfg": "Number of branches of classifier-free guidance that run side by side.",
}

VLLM = "vllm"
"""The engine kind that starts its ranks itself, from the degrees and all devices of the replica."""

ENGINE_AXES: dict[str, frozenset[str]] = {
    "autoregressive": frozenset({"tensor", "expert"}),
    VLLM: frozenset({"tensor", "pipeline", "expert"}),
}
"""Engine kind → the axes along which it can be split; an engine kind without an entry cannot be split."""


@dataclass(frozen=True, slots=True)
class Network:
    """The sizes of a stage's network from a checkpoint's config, which parallel degrees must divide. ``why_not`` maps
    an axis along which the network cannot be split to the reason. ``inner`` are the widths of the feed-forward parts;
    ``experts`` is 0 for a network without experts, and ``expert_inner`` the width of one expert."""

    layers: int
    heads: int
    kv_heads: int
    inner: tuple[int, ...] = ()
    experts: int = 0
    expert_inner: int = 0
    why_not: tuple[tuple[str, str], ...] = ()


def engine_refusals(strategy: Strategy, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the degrees that an engine kind does not support: the axis, and a sentence that says what to do instead."""
    possible = ENGINE_AXES.get(kind, frozenset())
    for name, degree in strategy.degrees().items():
        if degree > 1 and name not in possible:
            hint = "set replicas instead" if name == "data" else "only degree 1 runs"
            yield name, f"{name} parallel degree {degree} is not supported by engine '{kind}'; {hint}"


def network_refusals(strategy: Strategy, network: Network) -> Iterator[tuple[str, str]]:
    """Yield the degrees that do not fit a network: the axis and a sentence.

    ``tensor`` shares out query heads, key heads (a rank has key heads of its own, or shares one with other ranks) and
    the width of the feed-forward parts. Where ``expert`` shares out whole experts, the width of an expert is not split.
    """
    reasons = dict(network.why_not)
    for name, degree in strategy.degrees().items():
        if degree > 1 and name in reasons:
            yield name, f"{name} parallel degree {degree}: {reasons[name]}"
            return
    tensor, expert = strategy.tensor, strategy.expert
    if network.heads % tensor:
        yield "tensor", f"tensor parallel degree {tensor} does not divide the model's {network.heads} attention heads"
    if network.kv_heads % tensor and tensor % network.kv_heads:
        yield (
            "tensor",
            f"tensor parallel degree {tensor} neither divides the model's {network.kv_heads} key-value heads nor is a "
            "multiple of them",
        )
    for width in (*network.inner, *([network.expert_inner] if expert == 1 else [])):
        if width % tensor:
            yield "tensor", f"tensor parallel degree {tensor} does not divide the model's intermediate size of {width}"
    if strategy.pipeline > network.layers:
        yield "pipeline", f"pipeline parallel degree {strategy.pipeline} exceeds the model's {network.layers} layers"
    if expert > 1 and not network.experts:
        yield "expert", f"expert parallel degree {expert}: the model has no experts"
    elif expert > 1 and network.experts % expert:
        yield "expert", f"expert parallel degree {expert} does not divide the model's {network.experts} experts"


def expert_refusals(strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield the axis and a sentence if the expert degree is not a grouping of the ranks."""
    among = strategy.data * strategy.tensor
    if strategy.expert not in (1, among):
        yield (
            "expert",
            f"expert parallel degree {strategy.expert}: experts are shared out among all ranks of data and tensor, "
            f"which are {among}; set it to that, or to 1",
        )
