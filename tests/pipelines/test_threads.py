"""CPU threads are shared by weight, and never more than there are, beyond one each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.pipelines.planning.threads import share_threads, shared_cores


def test_vllm_leaves_a_core_to_the_server_if_there_is_another() -> None:
    assert [shared_cores("vllm", cores) for cores in (1, 2, 64)] == [1, 1, 63]
    assert shared_cores("autoregressive", 2) == 2


def test_one_stage_gets_all() -> None:
    assert share_threads(6, {"llm": 1.0}, {"llm": 1}, {}) == {"llm": 6}


def test_on_two_cores_each_of_four_gets_one() -> None:
    weights = {"asr": 2.0, "llm": 4.0, "acoustic": 1.0, "vocoder": 1.0}
    assert set(share_threads(2, weights, dict.fromkeys(weights, 1), {}).values()) == {1}


def test_replicas_count() -> None:
    assert share_threads(8, {"a": 1.0, "b": 1.0}, {"a": 3, "b": 1}, {}) == {"a": 2, "b": 2}


def test_fixed_counts_are_kept_and_the_rest_is_shared() -> None:
    assert share_threads(8, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1, "b": 1, "c": 1}, {"a": 4}) == {
        "a": 4,
        "b": 2,
        "c": 2,
    }
    assert share_threads(2, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 1}, {"a": 16}) == {"a": 16, "b": 1}


def test_weight_zero_takes_no_share() -> None:
    assert share_threads(8, {"llm": 1.0, "media": 0.0}, {"llm": 1, "media": 1}, {}) == {"llm": 8, "media": 1}


@settings(deadline=None)
@given(
    st.integers(1, 64),
    st.dictionaries(st.text(min_size=1), st.tuples(st.floats(0, 10), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_never_more_than_cores_unless_one_each_is(cores: int, stages: dict[str, tuple[float, int]]) -> None:
    weights = {name: weight for name, (weight, _) in stages.items()}
    replicas = {name: count for name, (_, count) in stages.items()}
    threads = share_threads(cores, weights, replicas, {})
    assert threads.keys() == stages.keys()
    assert all(count >= 1 for count in threads.values())
    # Each stage may be rounded up to one; without those the sum fits.
    assert sum(threads[n] * replicas[n] for n in threads if threads[n] > 1) <= cores
