"""From events to samples to numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.entrypoints.bench.load import Level, Run
from omni_actors.entrypoints.bench.sample import Sample
from omni_actors.entrypoints.bench.sse import EventParser
from omni_actors.entrypoints.bench.statistics import aggregate, percentile, summarise

STREAM = b": comment\r\n\r\ndata: one\n\nevent: x\ndata:two\r\ndata: three\r\n\r\nid: 7\rdata: four\r\r"


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_how_the_stream_is_cut(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for a, b in itertools.pairwise(edges) for event in parser.feed(STREAM[a:b])]
    events += parser.feed(b"\n")  # the last CR may have been half of a CR LF
    assert events == [b"one", b"two\nthree", b"four"]
    assert not parser.unfinished


def test_an_event_without_its_empty_line_is_unfinished() -> None:
    parser = EventParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.unfinished


def test_underrun_is_the_silence_of_a_player_that_starts_at_once() -> None:
    smooth = Sample(audio=[(10.0, 1.0), (10.9, 1.0), (11.5, 1.0)])
    assert smooth.underrun == 0.0
    # Dry from 11.0 to 11.5, then from 12.5 to 14.0.
    stalls = Sample(audio=[(10.0, 1.0), (11.5, 1.0), (14.0, 1.0)])
    assert stalls.underrun == pytest.approx(2.0)


def test_tpot_needs_two_tokens() -> None:
    assert Sample(started=1.0, text=[2.0], tokens=1).tpot is None
    assert Sample(started=1.0, text=[2.0, 4.0], tokens=5).tpot == pytest.approx(0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([50, 90, 99]))
def test_percentile_is_a_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    result = percentile(values, percent)
    assert result in values
    assert sum(value <= result for value in values) >= len(values) * percent / 100
    assert sum(value < result for value in values) < len(values) * percent / 100


def _run(latencies: list[float], failed: int = 0) -> Run:
    good = [Sample(started=0.0, ended=latency, text=[latency], tokens=3) for latency in latencies]
    return Run(Level(concurrency=1), wall=2.0, samples=good + [Sample(error="no")] * failed)


def test_failed_requests_enter_no_latency_and_no_throughput() -> None:
    numbers = summarise(_run([1.0, 2.0], failed=3))
    assert (numbers["requests"], numbers["failed"]) == (5, 3)
    assert (numbers["e2el_mean"], numbers["e2el_p99"]) == (1.5, 2.0)
    assert (numbers["requests_per_s"], numbers["output_tokens_per_s"]) == (1.0, 3.0)


def test_the_result_of_a_level_is_the_median_of_its_repeats() -> None:
    result = aggregate([_run([1.0]), _run([9.0]), _run([2.0], failed=1)])
    assert result["median"]["ttft_p50"] == 2.0
    assert [repeat["ttft_p50"] for repeat in result["repeats"]] == [1.0, 9.0, 2.0]
    assert result["errors"] == {"no": 1}
