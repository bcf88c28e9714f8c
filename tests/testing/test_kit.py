"""The author's kit finds planted faults, and no faults in a sound pipeline."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
from tests.testing import planted

from omni_actors.author import Payload, text_payload
from omni_actors.orchestrator import open_orchestrator
from omni_actors.testing import PipelineConformance, Sample, cutting, served
from omni_actors.testing.outcome import Outcome

TESTS = (
    "test_declaration",
    "test_samples_are_served",
    "test_any_cut_of_the_input_gives_the_same",
    "test_credits_that_are_short_change_nothing",
    "test_who_is_beside_a_request_makes_no_difference",
    "test_an_abort_at_any_step_leaves_nothing",
    "test_input_that_is_wrong_fails_its_own_request",
    "test_a_wrong_return_is_one_failed_request",
)
"""All but the deaths, which start workers: ``examples/pipeline_plugin`` runs those."""


def suite(name: str) -> PipelineConformance:
    class Suite(PipelineConformance):
        pipeline = f"{planted.__name__}:{name}"
        samples = (Sample({}),)

    return Suite()


@pytest.mark.parametrize("name", ["SOUND", "SOUND_ENGINE"])
@pytest.mark.process
def test_a_sound_pipeline_passes(name: str) -> None:
    for test in TESTS:
        getattr(suite(name), test)()


@pytest.mark.parametrize(
    ("name", "test", "words"),
    [
        ("COUNTS_PAYLOADS", "test_any_cut_of_the_input_gives_the_same", "one run said"),
        ("SEES_COMPANY", "test_who_is_beside_a_request_makes_no_difference", "in company: one run said"),
        ("DRAWS", "test_any_cut_of_the_input_gives_the_same", "one run said"),
        ("BREAKS_ON_INPUT", "test_input_that_is_wrong_fails_its_own_request", "beside 'rows' missing: one run said"),
        ("PUSHES", "test_credits_that_are_short_change_nothing", "edges have no credit"),
        ("LEAKS", "test_an_abort_at_any_step_leaves_nothing", "a request that is over"),
        ("STALLS", "test_samples_are_served", "its step does nothing"),
        ("TWICE", "test_declaration", "two stages are called 'first'"),
    ],
)
@pytest.mark.process
def test_planted_faults_are_found(name: str, test: str, words: str) -> None:
    with pytest.raises(AssertionError) as found:
        getattr(suite(name), test)()
    assert words in str(found.value)


async def test_the_successor_of_a_killed_worker_is_waited_for() -> None:
    """The next sample must not meet a stage without a replica: on a slow machine that was a 503."""
    async with open_orchestrator(suite("SOUND")._bench().plan) as orchestrator:
        await orchestrator.wait_ready()
        (replica,) = orchestrator.pools["first"].replicas
        assert replica.pid is not None
        killed = replica.pid
        os.kill(killed, signal.SIGKILL)
        await served.wait_restarted(orchestrator, {killed})
        assert orchestrator.ready
        assert replica.pid != killed


def test_pieces_of_a_cut_make_up_the_whole() -> None:
    chance = random.Random(0)
    rows = [Payload("rows", {}, {"a": np.arange(i * 4, i * 4 + 8).reshape(4, 2)}) for i in range(3)]
    texts = [text_payload("to be or "), text_payload("not")]
    seen = set()
    for _ in range(50):
        parts = cutting.cut(rows, chance)
        seen.add(len(parts))
        assert (
            np.concatenate([it.tensors["a"] for it in parts]).tolist()
            == np.concatenate([it.tensors["a"] for it in rows]).tolist()
        )
        assert "".join(it.meta["text"] for it in cutting.cut(texts, chance)) == "to be or not"
    assert len(seen) > 5
    kept = Payload("rows", {"start": 5}, {"a": np.zeros((4, 2))})
    assert cutting.cut([kept], chance) == [kept]


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (Outcome(sound=b"\0\0"), Outcome(sound=b"\0\0\0\0"), "2 bytes of media, the other 4"),
        (Outcome(sound=b"\0\0"), Outcome(sound=b"\0\x40"), "differs by up to"),
        (Outcome(sound=b"\0\0"), Outcome(sound=b"\1\0"), ""),
        (Outcome(text={0: "a"}), Outcome(text={0: "b"}), "one run said"),
        (Outcome([text_payload("ab")]), Outcome([text_payload("a"), text_payload("b")]), ""),
        (Outcome([text_payload("ab")]), Outcome([text_payload("a")]), "'text.text' is 'ab'"),
        (Outcome([Payload("x", {}, {"a": np.zeros(2)})]), Outcome([Payload("x", {}, {"a": np.ones(2)})]), "numbers of"),
        (Outcome([Payload("x", {}, {"a": np.zeros(2)})]), Outcome([]), "one run emitted"),
    ],
)
def test_outcomes_are_compared_regardless_of_cuts(one: Outcome, two: Outcome, words: str) -> None:
    assert words in one.difference(two)
    assert bool(one.difference(two)) == bool(words)
