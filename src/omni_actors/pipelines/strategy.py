"""Parallel degrees inside one replica of a stage, and what stands against them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Strategy:
    """How many devices one replica is spread over, and along which dimension. Every degree is at least 1.

    The replica count is no part of it: replicas share nothing, the devices of one replica share a model.
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
        """Devices of a replica. Experts add none: they are shared out among the ranks of data and tensor."""
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
"""The engine kind that starts its ranks itself: it is told the degrees and sees all devices of its replica."""

ENGINE_AXES: dict[str, frozenset[str]] = {
    "autoregressive": frozenset({"tensor", "expert"}),
    VLLM: frozenset({"tensor", "pipeline", "expert"}),
}
"""Engine kind → what it can be split along; nothing for one that is not named."""


@dataclass(frozen=True, slots=True)
class Network:
    """A stage's network as a checkpoint's config gives it: what must divide. ``why_not`` says of an axis along which
    it cannot be split why that is. ``inner`` are the widths of its feed-forward parts; ``experts`` is 0 without a
    mixture, and ``expert_inner`` the width of one expert."""

    layers: int
    heads: int
    kv_heads: int
    inner: tuple[int, ...] = ()
    experts: int = 0
    expert_inner: int = 0
    why_not: tuple[tuple[str, str], ...] = ()


def engine_refusals(strategy: Strategy, kind: str) -> Iterator[tuple[str, str]]:
    """The degrees that an engine kind cannot do, each with a sentence that says what to do instead."""
    possible = ENGINE_AXES.get(kind, frozenset())
    for name, degree in strategy.degrees().items():
        if degree > 1 and name not in possible:
            hint = "set replicas instead" if name == "data" else "only degree 1 runs"
            yield name, f"{name} parallel degree {degree} is not supported by engine '{kind}'; {hint}"


def network_refusals(strategy: Strategy, network: Network) -> Iterator[tuple[str, str]]:
    """The degrees that do not fit a network: the axis and a sentence.

    ``tensor`` shares out query heads, key heads (a rank has one of its own or shares it with others) and the width of
    the feed-forward parts; where ``expert`` shares out whole experts, theirs is left as it is.
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
    """An expert degree that is no grouping of the ranks there are."""
    among = strategy.data * strategy.tensor
    if strategy.expert not in (1, among):
        yield (
            "expert",
            f"expert parallel degree {strategy.expert}: experts are shared out among all ranks of data and tensor, "
            f"which are {among}; set it to that, or to 1",
        )
