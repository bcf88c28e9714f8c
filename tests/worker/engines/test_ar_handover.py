"""Prefill and decode in two engines answer as one engine does, and hold nothing afterwards."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import MAX_STEPS, Answer, Collector, engine_of, load_adapter, run, work
from tests.worker.engines.ar_pair import Pair, half, rows_of

from omni_actors.connectors.payload import held_tensors
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.protocol.request import TokenLogprob
from omni_actors.worker import kv
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import disaggregation
from omni_actors.worker.engines.autoregressive.adapter import State

RNG = random.Random(7)
PROMPTS = [[RNG.randrange(256) for _ in range(length)] for length in (1, 3, 16, 17, 40, 64, 90, 133)]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_adapter(tiny_models.save(tmp_path_factory.mktemp("model")))


def pair(adapter: CausalLM, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> Pair:
    return Pair(
        half(
            adapter,
            "prefill",
            **({"block_size": 16, "kv_blocks": 64, "step_tokens": 32, "max_batch": 16} | (prefill or {})),
        ),
        half(adapter, "decode", **({"block_size": 5, "kv_blocks": 300} | (decode or {}))),
    )


def works(**sampling: Any) -> list[Work]:
    return [work(key, prompt, **({"max_tokens": 12} | sampling)) for key, prompt in enumerate(PROMPTS)]


def answers(out: Collector) -> dict[int, dict[int, Answer]]:
    assert not out.errors
    for choices in out.answers.values():
        for answer in choices.values():
            answer.deltas = []  # how text is cut into deltas is a matter of timing
    return {key: dict(choices) for key, choices in out.answers.items()}


def alone(adapter: CausalLM, works: list[Work]) -> Collector:
    """What one engine answers."""
    return run(engine_of(adapter, block_size=16, kv_blocks=128, step_tokens=32, max_batch=16), works, 8)


def scores(answer: Answer) -> list[float]:
    """Every log-probability of an answer, and takes them out."""
    found = [value for p in answer.logprobs for value in (p.logprob, *(t[2] for t in p.top))]
    answer.logprobs = [
        TokenLogprob(p.token_id, p.token, 0.0, tuple((*t[:2], 0.0) for t in p.top)) for p in answer.logprobs
    ]
    return found


def assert_same(found: Collector, expected: Collector) -> None:
    """The same answers. Numbers are equal to 1e-4: batches of other shapes add up in another order."""
    ours, theirs = answers(found), answers(expected)
    for key, choices in theirs.items():
        for index, answer in choices.items():
            assert scores(ours[key][index]) == pytest.approx(scores(answer), abs=1e-4, nan_ok=True)
    assert ours == theirs
    assert found.usage == expected.usage


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 3, "n": 3},
        {"temperature": 0.8, "seed": 1, "top_p": 0.9, "repetition_penalty": 1.2, "logit_bias": {65: 5.0}},
        {"stop": ["a", "\n"], "min_tokens": 2},
        {"logprobs": 3},
        {"echo": True, "logprobs": 2},
        {"echo": True, "max_tokens": 0, "logprobs": 0},
        {"max_tokens": 1},
    ],
    ids=lambda s: ",".join(s) or "greedy",
)
def test_two_engines_answer_as_one_does(adapter: CausalLM, sampling: dict[str, Any]) -> None:
    two = pair(adapter)
    assert_same(two.run(works(**sampling)), alone(adapter, works(**sampling)))
    counters = two.decode.counters()
    assert counters["recomputed_prompt_tokens_total"] == 0
    assert counters["kv_imported_tokens_total"] == sum(map(len, PROMPTS))
    if "n" not in sampling:
        assert counters["computed_tokens_total"] == counters["completion_tokens_total"] - (
            len(PROMPTS) if counters["completion_tokens_total"] else 0
        )
    assert two.prefill.counters()["completion_tokens_total"] == 0
    assert two.prefill.counters()["computed_tokens_total"] == sum(map(len, PROMPTS))


def test_keys_and_values_may_stay_on_the_device(adapter: CausalLM) -> None:
    two = pair(adapter, {"connector": "device"})
    assert_same(two.run(works()), alone(adapter, works()))
    rows = [it for payloads in two.payloads.values() for it in payloads if "tokens" in it.meta]
    assert sum(it.meta["tokens"] for it in rows) == sum(map(len, PROMPTS))
    assert all("rows" in held_tensors(it) for it in rows)


def test_the_keys_and_values_are_those_of_the_first_engine_bit_for_bit(adapter: CausalLM) -> None:
    two = pair(adapter, {"prefix_cache": False})
    two.admit(work(0, PROMPTS[-1], max_tokens=30))
    while not (count := two.decode.counters()["computed_tokens_total"]):
        two.turn()
    assert count == 1
    sequence = two.decode._requests[0].first
    here = kv.extract(two.decode._runner.cache, sequence.blocks, 0, len(PROMPTS[-1])).tensors["rows"]
    assert (here.view("uint32") == rows_of(two.payloads[0]).view("uint32")).all()
    assert len(sequence.blocks) > len(PROMPTS[-1]) // 5


def test_rows_leave_while_the_rest_is_computed(adapter: CausalLM) -> None:
    two = pair(adapter)
    two.run([work(0, PROMPTS[-1], max_tokens=2)])
    asked, *rows = two.payloads[0]
    assert asked.meta["ask"] == 133
    assert [p.meta["tokens"] for p in rows] == [32, 32, 32, 32, 5]
    assert ["handover" in p.meta for p in rows] == [False] * 4 + [True]  # the name that consumers of the edge know
    assert ["logits" in p.tensors for p in rows] == [False] * 4 + [True]


def test_the_first_engines_prefix_cache_saves_its_work_and_counts_as_usual(adapter: CausalLM) -> None:
    two = pair(adapter)
    two.run([work(0, PROMPTS[-1], max_tokens=2)])
    two.run([work(1, PROMPTS[-1], max_tokens=2)])
    assert two.out.usage[1].cached_tokens == 128
    assert two.out.usage[1].prompt_tokens == 133
    assert two.prefill.counters()["computed_tokens_total"] == 133 + 5
    assert two.out.answers[1][0].token_ids == two.out.answers[0][0].token_ids


def test_the_source_does_not_begin_before_the_destination_has_room(adapter: CausalLM) -> None:
    """Twelve blocks of five: the second prompt's eleven are there when the first has left."""
    two = pair(adapter, None, {"kv_blocks": 12})
    two.admit(work(0, PROMPTS[4], max_tokens=5))
    two.admit(work(1, [*PROMPTS[4][::-1], 1, 2, 3], max_tokens=5))
    waited = 0
    while 0 in two.open:
        assert two.turn()
        assert two.payloads[1] == [] or two.payloads[1][0].meta["ask"] == 43
        waited += len(two.payloads[1]) == 1
        assert len(two.payloads[1]) < 2 or 0 not in two.open
        if 0 in two.open:
            assert two.prefill.counters()["computed_tokens_total"] <= 40
    assert waited
    while two.open:
        assert two.turn()
    assert two.out.usage.keys() == {0, 1}
    two.assert_idle()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5, "n": 3}], ids=["one", "three"])
def test_preemption_swaps_and_recomputes_nothing(adapter: CausalLM, sampling: dict[str, Any]) -> None:
    """A second pool with hardly room for two: sequences move to host memory and back."""
    options = {"max_tokens": 40, **sampling}
    two = pair(adapter, None, {"kv_blocks": 36 if sampling else 45})
    assert answers(two.run(works(**options))) == answers(alone(adapter, works(**options)))
    counters = two.decode.counters()
    assert counters["preemptions_total"] > 0
    assert counters["recomputed_prompt_tokens_total"] == 0
    assert counters["swapped"] == 0


def test_preemption_of_the_first_engine_changes_nothing(adapter: CausalLM) -> None:
    two = pair(adapter, {"kv_blocks": 10, "step_tokens": 24}, None)
    assert answers(two.run(works())) == answers(alone(adapter, works()))


def test_a_batch_that_is_full_lets_nobody_in(adapter: CausalLM) -> None:
    two = pair(adapter, None, {"max_batch": 2})
    for each in works(max_tokens=20):
        two.admit(each)
    most = 0
    while two.open:
        assert two.turn()
        counters = two.decode.counters()
        assert two.decode._consumer is not None
        granted = [it for it in two.decode._consumer._by_key.values() if it.granted]
        most = max(most, int(counters["running"]) + len(granted))
    assert most == 2
    assert two.out.usage.keys() == set(range(len(PROMPTS)))
    two.assert_idle()


def test_a_prompt_that_the_second_engine_cannot_hold_is_the_clients_mistake(adapter: CausalLM) -> None:
    two = pair(adapter, None, {"kv_blocks": 10})
    out = two.run(works())
    assert set(out.errors) == {4, 5, 6, 7}
    assert {e.code for e in out.errors.values()} == {"context_length_exceeded"}
    assert {e.status for e in out.errors.values()} == {400}
    assert two.prefill.counters()["computed_tokens_total"] == sum(map(len, PROMPTS[:4]))


def test_keys_of_another_model_are_refused(adapter: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = load_adapter(tiny_models.save(tmp_path_factory.mktemp("other"), seed=1, num_hidden_layers=2))
    two = Pair(half(other, "prefill"), half(adapter, "decode"))
    out = two.run([work(0, PROMPTS[2])])
    assert out.errors[0].code == "kv_layout"
    assert out.errors[0].message.endswith("layers 2 instead of 3.")
    assert two.prefill.counters()["computed_tokens_total"] == 0


def test_numbers_that_are_none_fail_their_request_in_the_first_engine(
    adapter: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = pair(adapter)
    forward = adapter.decoder.forward

    def broken(inputs: Any, attention: Any) -> Any:
        output = forward(inputs, attention)
        bad = [i for i, r in enumerate(inputs.rows.tolist()) if inputs.tokens[r] == PROMPTS[3][-1]]
        output.logits[bad] = torch.nan
        return output

    monkeypatch.setattr(adapter.decoder, "forward", broken)
    out = two.run([work(0, PROMPTS[3], max_tokens=1), work(1, PROMPTS[2], max_tokens=1)])
    assert out.errors.keys() == {0}
    assert out.errors[0].code == "stage_failed"
    assert 1 in out.usage
    monkeypatch.undo()
    assert 2 in two.run([work(2, PROMPTS[3], max_tokens=1)]).usage


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_is_aborted_whenever_nothing_stays(adapter: CausalLM, data: st.DataObject) -> None:
    two = pair(
        adapter,
        {"block_size": data.draw(st.sampled_from([4, 16])), "kv_blocks": 40, "step_tokens": 16},
        {"block_size": data.draw(st.sampled_from([3, 8])), "kv_blocks": data.draw(st.integers(50, 80))},
    )
    todo = works(max_tokens=6, n=data.draw(st.integers(1, 2)))
    expected = answers(alone(adapter, todo))
    aborts = {
        turn: data.draw(st.integers(0, len(PROMPTS) - 1))
        for turn in data.draw(st.lists(st.integers(0, 30), max_size=4))
    }
    for each in todo:
        two.admit(each)
    aborted = set()
    for turn in range(2000):
        if turn in aborts and aborts[turn] in two.open:
            two.abort(aborts[turn])
            aborted.add(aborts[turn])
        if not two.open:
            break
        assert two.turn()
    two.deliver()
    two.assert_idle()
    assert {k: v for k, v in answers(two.out).items() if k not in aborted} == {
        k: v for k, v in expected.items() if k not in aborted
    }


def test_a_chat_is_handed_over_like_any_prompt(adapter: CausalLM) -> None:
    chat = Prompt(messages=[{"role": "user", "content": "hello"}])
    two = pair(adapter)
    assert answers(two.run([work(0, chat, max_tokens=9)])) == answers(alone(adapter, [work(0, chat, max_tokens=9)]))


@pytest.mark.parametrize("error", [invalid_request("not today"), KeyError("delta")], ids=["typed", "a bug"])
def test_a_prompt_that_cannot_be_taken_over_fails_alone(
    adapter: CausalLM, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def import_state(work: Work, state: State) -> None:
        assert state == State()
        if work.key == 1:
            raise error

    monkeypatch.setattr(adapter, "import_state", import_state)
    two = pair(adapter)
    out = two.run(works())
    assert out.errors.keys() == {1}
    assert out.errors[1].status == (400 if isinstance(error, OmniError) else 500)
    expected = answers(alone(adapter, works()))
    assert {k: dict(v) for k, v in out.answers.items()}.keys() == expected.keys() - {1}


def test_consumers_that_stand_still_hold_no_more_than_a_batch(adapter: CausalLM) -> None:
    """Their sequences make room for others' and wait in host memory; nobody else comes in beyond the batch."""
    two = pair(adapter, None, {"kv_blocks": 60, "max_batch": 4})
    for each in reversed(works(max_tokens=40)):
        two.admit(each)
    swapped = 0.0
    for turn in range(MAX_STEPS):
        if turn == 20:
            two.out.blocked = set(range(0, len(PROMPTS), 2))
        if not two.turn():
            break
        counters = two.decode.counters()
        assert counters["running"] + counters["waiting"] <= 4
        swapped = max(swapped, counters["swapped"])
    assert swapped
    assert two.open
    two.out.blocked = set()
    while two.open:
        assert two.turn()
    two.assert_idle()
    assert answers(two.out) == answers(alone(adapter, works(max_tokens=40)))


def test_what_was_cached_already_leaves_in_pieces_too(adapter: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disaggregation, "PAYLOAD_BYTES", 20 * adapter.decoder.kv_shape.token_bytes + 1)
    two = pair(adapter)
    for key in range(2):
        two.run([work(key, PROMPTS[-1], max_tokens=8)])
        _, *rows = two.payloads[key]
        sizes = [p.meta["tokens"] for p in rows]
        assert (sum(sizes), max(sizes)) == (133, 20)
        assert [p.meta["start"] for p in rows] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert two.out.usage[1].cached_tokens == 128
    whole = alone(adapter, [work(0, PROMPTS[-1], max_tokens=8)])
    assert two.out.answers[1][0].token_ids == whole.answers[0][0].token_ids
