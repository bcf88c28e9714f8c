"""The layout of a replica's ranks over devices.

Ranks are numbered as in vLLM and xDiT, from the outermost axis to the innermost: data, cfg, pipeline, sequence, tensor.
The axis with the most traffic is innermost, so that its ranks are neighbours: tensor parallel ranks reduce twice in
every layer, sequence parallel ranks exchange once in each attention, pipeline stages hand over once per step, and the
branches of cfg and the copies of data meet once per step or never.

Experts are not a further axis but another grouping, as in vLLM, of the ranks that hold a layer together (data and
tensor): an expert group is a run of neighbouring ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from omni_actors.pipelines.strategy import Strategy

ORDER = ("data", "cfg", "pipeline", "sequence", "tensor")
"""The axes, from the outermost to the innermost."""

REGROUPED = ("data", "tensor")
"""The axes over whose ranks experts are shared out."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a replica. ``place`` is the rank's place in its group of each axis and of ``expert``."""

    index: int
    device: str
    place: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of a replica in order, and the groups of each axis. Every rank is in exactly one group of an axis."""

    ranks: tuple[Rank, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(rank.device for rank in self.ranks)


def lay_out(strategy: Strategy, devices: Sequence[str]) -> Layout:
    """Lay out the ranks of a replica.

    Args:
        strategy: The parallel degrees.
        devices: One device per rank, in order.

    Raises:
        ValueError: The number of devices is not the number of ranks, or the expert degree does not divide the ranks.

    Example:
        >>> lay_out(Strategy(tensor=2), ["cuda:0", "cuda:1"]).groups["tensor"]
        ((0, 1),)
    """
    degrees = strategy.degrees()
    if len(devices) != strategy.ranks:
        raise ValueError(f"{strategy.ranks} ranks on {len(devices)} devices")
    places = [dict(zip(ORDER, at, strict=True)) for at in product(*(range(degrees[axis]) for axis in ORDER))]
    groups = {axis: _groups(places, (axis,), degrees[axis]) for axis in ORDER}
    groups["expert"] = _groups(places, REGROUPED, degrees["expert"])
    for members in groups["expert"]:
        for place, rank in enumerate(members):
            places[rank]["expert"] = place
    ranks = (Rank(i, device, MappingProxyType(places[i])) for i, device in enumerate(devices))
    return Layout(tuple(ranks), MappingProxyType(groups))


def _groups(places: Sequence[Mapping[str, int]], axes: Sequence[str], size: int) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that differ only in some axes, in groups of ``size`` neighbours."""
    beside = [axis for axis in ORDER if axis not in axes]
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        alike.setdefault(tuple(place[axis] for axis in beside), []).append(rank)
    if any(len(ranks) % size for ranks in alike.values()):
        raise ValueError(f"{len(next(iter(alike.values())))} ranks are not groups of {size}")
    return tuple(tuple(ranks[i : i + size]) for ranks in alike.values() for i in range(0, len(ranks), size))
