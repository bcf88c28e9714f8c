"""A strategy laid out over devices: every rank in one group of each axis, neighbours where most is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.layout import ORDER, lay_out
from omni_actors.pipelines.strategy import Strategy

DEGREE = st.integers(1, 4)


@st.composite
def strategies(draw: Any) -> Strategy:
    """Any degrees, with an expert degree that can be."""
    degrees = {axis: draw(DEGREE) for axis in ORDER}
    among = degrees["data"] * degrees["tensor"]
    return Strategy(**degrees, expert=draw(st.sampled_from([d for d in range(1, among + 1) if among % d == 0])))


@settings(max_examples=150, deadline=None)
@given(strategies())
def test_every_rank_is_in_one_group_of_each_axis(strategy: Strategy) -> None:
    layout = lay_out(strategy, [f"x:{i}" for i in range(strategy.ranks)])
    assert [rank.index for rank in layout.ranks] == list(range(strategy.ranks))
    assert len(set(layout.devices)) == strategy.ranks
    for axis, degree in strategy.degrees().items():
        groups = layout.groups[axis]
        assert sorted(rank for group in groups for rank in group) == list(range(strategy.ranks))
        assert {len(group) for group in groups} == {degree}
        for group in groups:
            assert [layout.ranks[rank].place[axis] for rank in group] == list(range(degree))


@settings(max_examples=150, deadline=None)
@given(strategies())
def test_a_group_differs_in_its_own_axis_alone(strategy: Strategy) -> None:
    layout = lay_out(strategy, ["x"] * strategy.ranks)
    for axis in ORDER:
        for group in layout.groups[axis]:
            beside = {tuple(layout.ranks[rank].place[other] for other in ORDER if other != axis) for rank in group}
            assert len(beside) == 1
    for group in layout.groups["expert"]:  # a layer is in one place of the pipeline, and experts are those of a layer
        assert len({tuple(layout.ranks[r].place[axis] for axis in ("cfg", "pipeline", "sequence")) for r in group}) == 1


def test_the_order_is_the_fields_own() -> None:
    """As vLLM's and xDiT's groups: tensor ranks are neighbours, copies of data farthest apart."""
    groups = lay_out(Strategy(tensor=2, pipeline=2, data=2), [f"x:{i}" for i in range(8)]).groups
    assert groups["tensor"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups["pipeline"] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups["data"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert lay_out(Strategy(tensor=2, data=2, expert=4), list("abcd")).groups["expert"] == ((0, 1, 2, 3),)


def test_experts_that_do_not_share_out_are_refused() -> None:
    with pytest.raises(ValueError, match="4 ranks are not groups of 3"):
        lay_out(Strategy(tensor=4, expert=3), list("abcd"))
    with pytest.raises(ValueError, match="2 ranks on 3 devices"):
        lay_out(Strategy(tensor=2), list("abc"))


@given(st.integers(1, 4), st.integers(1, 5))
def test_replicas_share_no_device(tensor: int, replicas: int) -> None:
    llm = plan_of(ASSISTANT).stage("llm")
    devices = tuple(f"x:{i}" for i in range(tensor * replicas))
    llm = replace(llm, devices=devices, strategy=Strategy(tensor=tensor), replicas=replicas, worker_devices=())
    used = [device for replica in range(replicas) for device in llm.layout_of(replica).devices]
    assert used == list(devices)
    assert llm.device_of(replicas) == "x:0"  # counted around, as for replicas of one rank
