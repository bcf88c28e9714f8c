"""The two state machines, and the frame table that says who sends what."""

from __future__ import annotations

import re
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.protocol import frames
from omni_actors.protocol.states import REPLICA, REQUEST, IllegalTransition, ReplicaState, RequestState, advance


@given(st.lists(st.sampled_from(RequestState), max_size=12))
def test_whatever_is_tried_a_request_has_at_most_one_terminal_state_and_nothing_after_release(
    tried: list[RequestState],
) -> None:
    state, seen = RequestState.NEW, [RequestState.NEW]
    for following in tried:
        try:
            state = advance(state, following)
        except IllegalTransition:
            continue
        seen.append(state)
    assert sum(it.terminal for it in seen) <= 1
    assert RequestState.RELEASED not in seen[:-1]
    if RequestState.RELEASED in seen:
        assert seen[-2].terminal


def test_every_state_can_be_reached_and_left() -> None:
    for table in (REQUEST, REPLICA):
        assert {it for following in table.values() for it in following} | {RequestState.NEW} >= set(table)
    assert REQUEST[RequestState.RELEASED] == frozenset()
    with pytest.raises(IllegalTransition, match="dead → ready"):
        advance(ReplicaState.DEAD, ReplicaState.READY)


def test_the_frame_table_names_every_frame_with_its_direction() -> None:
    table = dict(re.findall(r"^(\w+) +(serving → worker|worker → serving|worker → worker)", frames.__doc__ or "", re.M))
    unions = {
        "serving → worker": frames.Down,
        "worker → serving": frames.Up,
        "worker → worker": frames.Peer,
    }
    expected = {kind.__name__: way for way, union in unions.items() for kind in typing.get_args(union)}
    assert table == expected
