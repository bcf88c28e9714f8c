"""What a client, a neighbouring stage and an operator see of the autoregressive engine, on tiny random models."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import (
    Answer,
    Collector,
    assert_idle,
    engine_of,
    load_adapter,
    run,
    work,
)

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine

STORY = list(range(32, 96)) * 2


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_adapter(tiny_models.save(tmp_path_factory.mktemp("llama")))


def answer(engine: AutoregressiveEngine, prompt: Prompt | list[int] | str, **sampling: Any) -> Answer:
    return run(engine, [work(0, prompt, **sampling)]).answers[0][0]


def chat(*contents: Any) -> Prompt:
    return Prompt(messages=[{"role": "user", "content": c} for c in contents])


# ---- composition


def test_a_request_in_company_says_what_it_says_alone(adapter: CausalLM) -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 90))] for _ in range(20)]
    alone = [answer(engine_of(adapter), p, max_tokens=12, ignore_eos=True).token_ids for p in prompts]
    works = [work(i, p, max_tokens=12, ignore_eos=True) for i, p in enumerate(prompts)]
    out = run(engine_of(adapter, step_tokens=24, max_batch=7), works)
    assert [out.answers[i][0].token_ids for i in range(20)] == alone


def test_a_seed_repeats_alone_in_company_and_after_preemption(adapter: CausalLM) -> None:
    def works() -> list[Any]:
        return [work(i, STORY[i : i + 40], max_tokens=24, temperature=0.8, seed=i, ignore_eos=True) for i in range(8)]

    first = run(engine_of(adapter), works())
    tight = engine_of(adapter, kv_blocks=13, block_size=8)
    preempted = run(tight, works())
    assert tight.counters()["preemptions_total"] > 0
    for each in works():
        alone = run(engine_of(adapter), [each]).answers[each.key][0].token_ids
        assert first.answers[each.key][0].token_ids == alone == preempted.answers[each.key][0].token_ids


def test_without_a_seed_two_answers_differ(adapter: CausalLM) -> None:
    out = run(engine_of(adapter), [work(i, STORY, temperature=1.5, max_tokens=24, ignore_eos=True) for i in range(2)])
    assert out.answers[0][0].token_ids != out.answers[1][0].token_ids


def test_decodes_go_on_while_a_long_prompt_is_computed(adapter: CausalLM) -> None:
    engine, out = engine_of(adapter, step_tokens=32, max_batch=4), Collector()
    engine.admit(work(1, STORY[:8], max_tokens=50, ignore_eos=True))
    engine.step(out)
    engine.admit(work(2, STORY * 3, max_tokens=1, ignore_eos=True))
    for done in range(2, 12):
        engine.step(out)
        assert len(out.answers[1][0].token_ids) == done
    assert not out.answers[2][0].token_ids  # 384 tokens, at most 31 at a time


# ---- prefix reuse, n


def test_a_repeated_prompt_is_not_computed_again(adapter: CausalLM) -> None:
    engine = engine_of(adapter)
    first = run(engine, [work(0, STORY, max_tokens=8)])
    before = engine.counters()["computed_tokens_total"]
    second = run(engine, [work(0, STORY, max_tokens=8)])
    assert second.answers[0][0].token_ids == first.answers[0][0].token_ids
    assert (first.usage[0].cached_tokens, second.usage[0].cached_tokens) == (0, 112)  # 128, less the last block
    assert engine.counters()["computed_tokens_total"] - before == 16 + 7
    assert_idle(engine)


def test_an_answer_is_reused_as_the_next_turns_beginning(adapter: CausalLM) -> None:
    engine = engine_of(adapter)
    said = answer(engine, STORY, max_tokens=40, ignore_eos=True).token_ids
    out = run(engine, [work(0, STORY + said + STORY[:5], max_tokens=1)])
    assert out.usage[0].cached_tokens == 160  # of 168 tokens, the last of which was never computed


def test_choices_share_the_prompts_blocks_and_differ_in_their_draws(adapter: CausalLM) -> None:
    engine, out = engine_of(adapter), Collector()
    engine.admit(work(0, STORY[:100], n=5, temperature=1.0, seed=4, max_tokens=20, ignore_eos=True))
    engine.step(out)
    assert engine.counters()["kv_blocks_used"] == 6 + 5
    while engine.runnable:
        engine.step(out)
    assert len({tuple(a.token_ids) for a in out.answers[0].values()}) == 5
    assert out.usage[0].completion_tokens == 100
    assert out.usage[0].prompt_tokens == 100
    assert_idle(engine)


def test_choices_are_the_same_without_room_to_fork(adapter: CausalLM) -> None:
    request: dict[str, Any] = {"n": 6, "temperature": 1.0, "seed": 9, "max_tokens": 30, "ignore_eos": True}
    wide = run(engine_of(adapter), [work(0, STORY[:50], **request)])
    tight = run(engine_of(adapter, kv_blocks=12, block_size=8, max_batch=4), [work(0, STORY[:50], **request)])
    assert [wide.answers[0][i].token_ids for i in range(6)] == [tight.answers[0][i].token_ids for i in range(6)]


# ---- ends


def test_stop_strings_never_leak_however_they_are_cut(adapter: CausalLM) -> None:
    whole = answer(engine_of(adapter), STORY, max_tokens=60, ignore_eos=True).text
    for start in range(4, 40, 3):
        for length in (1, 2, 5):
            stop = whole[start : start + length]
            at = whole.index(stop)
            out = run(
                engine_of(adapter), [work(0, STORY, max_tokens=60, ignore_eos=True, stop=[stop, "never"], routed=True)]
            )
            got = out.answers[0][0]
            assert (got.text, got.finish_reason) == (whole[:at], "stop")
            assert "".join(out.emitted[0]) == whole[:at]


def test_log_probabilities_do_not_tell_a_stop_string(adapter: CausalLM) -> None:
    whole = answer(engine_of(adapter), STORY, max_tokens=30, ignore_eos=True)
    got = answer(engine_of(adapter), STORY, max_tokens=30, ignore_eos=True, stop=[whole.text[6:12]], logprobs=1)
    assert b"".join(entry.token for entry in got.logprobs).decode(errors="replace") == got.text


def test_end_of_sequence_ends_and_is_no_text(adapter: CausalLM) -> None:
    bias = {tiny_models.EOS: 100.0}
    got = answer(engine_of(adapter), STORY, max_tokens=9, min_tokens=4, logit_bias=bias)
    assert got.finish_reason == "stop"
    assert len(got.token_ids) == 5
    assert got.token_ids[-1] == tiny_models.EOS
    assert "<|end|>" not in got.text
    assert answer(engine_of(adapter), STORY, max_tokens=9, ignore_eos=True, logit_bias=bias).finish_reason == "length"


def test_a_stop_token_id_ends(adapter: CausalLM) -> None:
    tokens = answer(engine_of(adapter), STORY, max_tokens=20, ignore_eos=True).token_ids
    got = answer(engine_of(adapter), STORY, max_tokens=20, ignore_eos=True, stop_token_ids=[tokens[5]])
    assert got.token_ids == tokens[: tokens.index(tokens[5]) + 1]
    assert got.finish_reason == "stop"


def test_an_answer_ends_with_the_context(adapter: CausalLM) -> None:
    got = answer(engine_of(adapter), (STORY * 4)[: tiny_models.CONTEXT - 7], ignore_eos=True)
    assert (len(got.token_ids), got.finish_reason) == (7, "length")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [
        (STORY * 4, None, "prompt"),
        (STORY * 3, 200, "prompt"),
        (Prompt(messages=[{"role": "user", "content": "x" * 600}]), 1, "messages"),
    ],
)
def test_what_the_context_cannot_hold_is_refused(
    adapter: CausalLM, prompt: Any, max_tokens: int | None, param: str
) -> None:
    engine = engine_of(adapter)
    with pytest.raises(OmniError) as caught:
        engine.admit(work(0, prompt, max_tokens=max_tokens))
    assert (caught.value.info.status, caught.value.info.code) == (400, "context_length_exceeded")
    assert caught.value.info.param == param
    assert_idle(engine)


# ---- log-probabilities


def test_log_probabilities_are_the_models_own(adapter: CausalLM) -> None:
    got = answer(engine_of(adapter), STORY, max_tokens=10, ignore_eos=True, logprobs=3, echo=True)
    tokens = STORY + got.token_ids
    with torch.inference_mode():
        wanted = tiny_models.build()(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert adapter.vocabulary is not None
    plain = answer(engine_of(adapter), STORY, max_tokens=10, ignore_eos=True)
    assert got.text == adapter.vocabulary.tokenizer.decode(STORY) + plain.text
    assert len(got.logprobs) == len(tokens)
    assert math.isnan(got.logprobs[0].logprob)
    for place, entry in enumerate(got.logprobs[1:]):
        assert entry.token_id == tokens[place + 1]
        assert entry.logprob == pytest.approx(float(wanted[place, tokens[place + 1]]), abs=1e-4)
        best = wanted[place].topk(3)
        assert [t for t, _, _ in entry.top] == best.indices.tolist()
        assert [v for _, _, v in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


# ---- neighbours


def test_without_credit_a_request_stands_still_and_others_go_on(adapter: CausalLM) -> None:
    engine, out = engine_of(adapter), Collector()
    engine.admit(work(1, STORY, max_tokens=5, ignore_eos=True, routed=True))
    engine.admit(work(2, STORY, max_tokens=5, ignore_eos=True))
    engine.step(out)
    out.blocked.add(1)
    while engine.step(out):
        pass
    assert len(out.answers[1][0].token_ids) == 1
    assert len(out.answers[2][0].token_ids) == 5
    assert engine.runnable
    out.blocked.clear()
    while engine.runnable:
        engine.step(out)
    assert "".join(out.emitted[1]) == out.answers[1][0].text
    assert_idle(engine)


def test_only_the_first_choice_is_handed_on(adapter: CausalLM) -> None:
    request = work(0, STORY, n=3, temperature=1.0, seed=1, max_tokens=9, ignore_eos=True, routed=True)
    out = run(engine_of(adapter), [request])
    assert "".join(out.emitted[0]) == out.answers[0][0].text


def test_a_spoken_part_becomes_text_when_its_transcript_comes(adapter: CausalLM) -> None:
    parts = [{"type": "text", "text": "Listen:"}, {"type": "audio", "index": 0}, {"type": "audio", "index": 1}]
    engine, out = engine_of(adapter), Collector()
    engine.admit(work(0, chat(parts), ports=("transcripts",), max_tokens=8, ignore_eos=True))
    assert not engine.runnable
    engine.feed(0, "transcripts", Payload("text", {"text": " What is", "index": 0}), False)
    engine.feed(0, "transcripts", Payload("text", {"text": " this?", "index": 0}), False)
    assert not engine.runnable
    engine.feed(0, "transcripts", Payload("text", {"text": "Hm.", "index": 1}), True)
    while engine.runnable:
        engine.step(out)
    written = run(engine_of(adapter), [work(0, chat("Listen:\nWhat is this?\nHm."), max_tokens=8, ignore_eos=True)])
    assert out.answers[0][0].text == written.answers[0][0].text
    assert out.usage[0].prompt_tokens == written.usage[0].prompt_tokens
    assert_idle(engine)


def test_an_audio_part_without_a_transcript_is_refused(adapter: CausalLM) -> None:
    engine = engine_of(adapter)
    with pytest.raises(OmniError, match="audio") as caught:
        engine.admit(work(0, chat([{"type": "audio", "index": 0}])))
    assert caught.value.info.status == 400
    engine.admit(work(1, chat([{"type": "audio", "index": 0}]), ports=("transcripts",)))
    with pytest.raises(OmniError, match="audio"):
        engine.feed(1, "transcripts", None, True)
    engine.abort(1)
    assert_idle(engine)


# ---- leaving


def test_an_abort_leaves_nothing(adapter: CausalLM) -> None:
    engine, out = engine_of(adapter, step_tokens=32, max_batch=8), Collector()
    engine.admit(work(1, STORY, max_tokens=50, ignore_eos=True))
    engine.step(out)  # in the middle of the prompt
    engine.admit(work(2, STORY[:9], n=3, max_tokens=50, ignore_eos=True))
    for _ in range(8):
        engine.step(out)  # in the middle of the answers
    engine.admit(work(3, chat([{"type": "audio", "index": 0}]), ports=("transcripts",)))
    engine.admit(work(4, STORY, max_tokens=50))
    for key in (3, 1, 4, 2, 2, 99):
        engine.abort(key)
    assert not engine.runnable
    assert_idle(engine)


def test_numbers_that_are_none_fail_their_request_alone_and_stay_in_no_block(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    own = load_adapter(tiny_models.save(tmp_path_factory.mktemp("poisoned")))
    with torch.inference_mode():
        own.decoder._embeddings[7] = math.nan  # type: ignore[attr-defined]
    engine = engine_of(own, kv_blocks=8)
    healthy = run(engine, [work(1, STORY[:20], max_tokens=8, logit_bias={7: -100}, ignore_eos=True)])
    out = run(
        engine,
        [work(2, [7] * 40, max_tokens=8), work(3, STORY[:20], max_tokens=8, logit_bias={7: -100}, ignore_eos=True)],
    )
    assert out.errors[2].status == 500
    assert out.answers[3][0].token_ids == healthy.answers[1][0].token_ids
    for layer in engine._runner.cache.layers:
        assert layer.isfinite().all()
    assert_idle(engine)


def test_a_full_engine_refuses(adapter: CausalLM) -> None:
    engine = engine_of(adapter)
    for key in range(engine.options.max_requests):
        engine.admit(work(key, [1]))
    with pytest.raises(OmniError) as caught:
        engine.admit(work(9999, [1]))
    assert caught.value.info.status == 429


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_comings_and_goings_leave_nothing_and_change_no_answer(adapter: CausalLM, rng: random.Random) -> None:
    engine = engine_of(
        adapter,
        kv_blocks=rng.choice([14, 30, 100]),
        block_size=rng.choice([4, 8, 16]),
        step_tokens=rng.choice([8, 40, 200]),
        max_batch=rng.choice([2, 5, 30]),
        prefix_cache=rng.random() < 0.7,
    )
    out = Collector()
    wanted: dict[int, tuple[list[int], int]] = {}
    for key in range(14):
        start, length, most = rng.randrange(30), rng.randrange(1, 35), rng.randrange(1, 15)
        wanted[key] = (STORY[start : start + length], most)
        choices = rng.choice([1, 1, 3])
        engine.admit(work(key, wanted[key][0], max_tokens=most, n=choices, temperature=1.0, seed=key, ignore_eos=True))
        for _ in range(rng.randrange(4)):
            engine.step(out)
        out.blocked = {k for k in wanted if rng.random() < 0.2}
        if rng.random() < 0.2:
            gone = rng.choice(list(wanted))
            engine.abort(gone)
            if gone not in out.usage:
                del wanted[gone]
    out.blocked.clear()
    while engine.runnable:
        assert engine.step(out)
    assert_idle(engine)
    assert set(wanted) <= set(out.usage)
    for key, (prompt, most) in list(wanted.items())[:3]:
        alone = run(engine_of(adapter), [work(0, prompt, max_tokens=most, temperature=1.0, seed=key, ignore_eos=True)])
        assert out.answers[key][0].token_ids == alone.answers[0][0].token_ids
