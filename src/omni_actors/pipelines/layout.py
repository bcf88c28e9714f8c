"""Where the ranks of one replica compute: its strategy laid out over devices.

Ranks are numbered in the order that vLLM and xDiT number theirs, from the outermost axis to the innermost: data, cfg,
pipeline, sequence, tensor. The axis that talks most is innermost, so that its ranks are neighbours: tensor parallel
ranks reduce twice in every layer, sequence parallel ones exchange once in each attention, pipeline stages hand over
once per step, and the branches of cfg and the copies of data meet once per step or never.

Experts are no axis of their own but another grouping of the ranks that hold a layer together, those of data and tensor,
as in vLLM: an expert group is so many neighbours of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from omni_actors.pipelines.strategy import Strategy

ORDER = ("data", "cfg", "pipeline", "sequence", "tensor")
"""From the outermost axis to the innermost."""

REGROUPED = ("data", "tensor")
"""The axes whose ranks experts are shared out among."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a replica. ``place`` is its place in its group of each axis, ``expert`` among them."""

    index: int
    device: str
    place: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """A replica's ranks in order, and for each axis its groups: every rank is in exactly one of them."""

    ranks: tuple[Rank, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(rank.device for rank in self.ranks)


def lay_out(strategy: Strategy, devices: Sequence[str]) -> Layout:
    """The layout over ``devices``, one for each rank, in order. Raises ``ValueError`` for another number of them, and
    for an expert degree that does not divide the ranks it regroups."""
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
    """The ranks that differ in these axes alone, in groups of ``size`` neighbours."""
    beside = [axis for axis in ORDER if axis not in axes]
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(places):
        alike.setdefault(tuple(place[axis] for axis in beside), []).append(rank)
    if any(len(ranks) % size for ranks in alike.values()):
        raise ValueError(f"{len(next(iter(alike.values())))} ranks are not groups of {size}")
    return tuple(tuple(ranks[i : i + size]) for ranks in alike.values() for i in range(0, len(ranks), size))
