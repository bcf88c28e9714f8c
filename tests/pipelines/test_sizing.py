"""How many requests a stage is given at once where nobody has said it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.pipelines.factory import resolve


def given(*overrides: str) -> dict[str, Any]:
    return {stage.name: stage.limits.get("max_inflight") for stage in plan_of(ASSISTANT, *overrides).stages}


def test_an_autoregressive_stage_gets_its_batch_and_a_little_more_whatever_feeds_it() -> None:
    assert given("stages.llm.options.max_batch=32", "stages.asr.limits.max_inflight=100")["llm"] == 32 + 4
    assert given("stages.llm.options.max_batch=1")["llm"] == 1 + 1


def test_a_one_shot_stage_gets_two_batches_or_what_those_that_feed_it_are_given() -> None:
    narrow = given("stages.llm.options.max_batch=2")
    assert (narrow["llm"], narrow["acoustic"], narrow["vocoder"]) == (3, 16, 16)
    wide = given("stages.llm.options.max_batch=32")
    assert wide["llm"] == wide["acoustic"] == wide["vocoder"] == 36


def test_behind_an_edge_that_hands_on_only_at_the_end_both_are_added() -> None:
    found = given("stages.llm.options.max_batch=32", "edges.acoustic.text.mode=full")
    assert found["acoustic"] == found["vocoder"] == 16 + 36


def test_an_engine_that_nobody_knows_is_given_as_many_as_come() -> None:
    assert given()["asr"] is None
    assert given()["llm"] == 64 + 8
    assert all(stage.limits["max_inflight"] is None for stage in resolve("stub").stages)


def test_a_number_of_the_operators_stands() -> None:
    assert given("stages.vocoder.limits.max_inflight=3", "stages.asr.limits.max_inflight=4")["vocoder"] == 3


def test_replicas_share_what_comes_from_one() -> None:
    found = given("stages.llm.options.max_batch=64", "stages.acoustic.replicas=3")
    assert found["llm"] == 72
    assert found["acoustic"] == 24
    assert found["vocoder"] == 72


def test_it_is_at_most_what_a_worker_takes() -> None:
    assert given("stages.llm.limits.max_requests=10")["llm"] == 10


@pytest.mark.parametrize("stage", ["asr", "llm", "acoustic", "vocoder"])
def test_the_worker_is_told_numbers_alone(stage: str) -> None:
    limits = plan_of(ASSISTANT).hello(stage, 0, 1).limits
    assert all(isinstance(value, int) for value in limits.values())
