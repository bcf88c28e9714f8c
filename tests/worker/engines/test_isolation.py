"""One bad request in a batch of eight: it fails by itself, wherever it does, and seven say what they say alone."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import Collector, assert_idle, engine_of, load_adapter, run, work
from tests.worker.engines.ar_pair import Pair, half
from tests.worker.engines.faulty import PLACES, FaultyLM, Planted, caches_are_finite

from omni_actors.connectors.payload import Payload, TensorSpecs
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.platforms import Fault
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.protocol.request import TokenLogprob
from omni_actors.worker.engine import Work
from omni_actors.worker.isolation import RECOVERY_BATCHES, BrokenModel

BATCH, TOKENS, PROMPT = 8, 10, 20
BLOCKS = 64
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


def request(key: int, **changes: Any) -> Work:
    return work(key, STORY[key : key + PROMPT + key], max_tokens=TOKENS, ignore_eos=True, routed=True, **changes)


@pytest.fixture(scope="module")
def alone(adapter: CausalLM) -> list[list[int]]:
    return [run(engine_of(adapter, kv_blocks=BLOCKS), [request(key)]).answers[key][0].token_ids for key in range(BATCH)]


def assert_others_unharmed(out: Collector, bad: set[int], alone: list[list[int]]) -> None:
    for key in set(range(BATCH)) - bad:
        assert key not in out.errors
        assert out.answers[key][0].token_ids == alone[key]
        assert out.answers[key][0].finish_reason == "length"
        assert out.usage[key].completion_tokens == TOKENS


@pytest.mark.parametrize("place", [place for place in PLACES if place != "close"])
@pytest.mark.parametrize("bad", range(BATCH))
def test_one_of_eight_fails_alone_wherever_it_stands(
    adapter: CausalLM, alone: list[list[int]], place: str, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    late = 0 if place == "prefill" else PROMPT + bad + 3
    faulty = FaultyLM.of(adapter, {bad: place}, late)
    engine = engine_of(faulty, kv_blocks=BLOCKS)
    out = run(engine, [request(key) for key in range(BATCH)])
    assert_others_unharmed(out, {bad}, alone)
    error = out.errors[bad]
    assert (error.status, error.code, error.stage) == (500, "stage_failed", "llm")
    assert "secret" not in error.message
    assert [r.levelname for r in caplog.records if getattr(r, "request", "") == f"request-{bad}"] == ["ERROR"]
    if place != "nan":
        assert "secret" in caplog.text, "the traceback is for the log"
    assert out.answers[bad][0].token_ids == alone[bad][: 4 if place in ("decode", "nan") else 0], "what it said first"
    assert caches_are_finite(engine._runner.cache.layers)
    assert_idle(engine)
    # Nothing of it stays: what it wrote is found by nobody, and what the others left is right.
    faulty.faults.clear()
    again = run(engine, [request(key) for key in range(BATCH)])
    assert_others_unharmed(again, set(), alone)


def test_a_state_that_does_not_close_harms_nobody(adapter: CausalLM, alone: list[list[int]]) -> None:
    engine = engine_of(FaultyLM.of(adapter, {3: "close"}), kv_blocks=BLOCKS)
    out = run(engine, [request(key) for key in range(BATCH)])
    assert_others_unharmed(out, set(), alone)
    assert_idle(engine)


def test_several_fail_in_one_step_each_by_itself(adapter: CausalLM, alone: list[list[int]]) -> None:
    engine = engine_of(FaultyLM.of(adapter, {0: "prefill", 3: "prefill", 4: "nan", 7: "sampled"}), kv_blocks=BLOCKS)
    out = run(engine, [request(key) for key in range(BATCH)])
    assert set(out.errors) == {0, 3, 4, 7}
    assert_others_unharmed(out, {0, 3, 4, 7}, alone)
    assert_idle(engine)


def test_all_choices_of_a_bad_request_end_with_one_error(adapter: CausalLM, alone: list[list[int]]) -> None:
    for place in ("decode", "sampled", "nan"):
        engine = engine_of(FaultyLM.of(adapter, {1: place}, PROMPT + 3), kv_blocks=BLOCKS)
        out = run(engine, [request(0), request(1, n=3, temperature=1.0, seed=1), request(2)])
        assert set(out.errors) == {1}
        assert out.answers[0][0].token_ids == alone[0]
        assert out.answers[2][0].token_ids == alone[2]
        assert_idle(engine)


def test_who_hears_of_a_token_hears_of_it_once(adapter: CausalLM) -> None:
    faulty = FaultyLM.of(adapter, {2: "sampled"})
    run(engine_of(faulty, kv_blocks=BLOCKS), [request(key) for key in range(4)])
    assert {key: faulty.told.count(key) for key in range(4)} == {0: TOKENS, 1: TOKENS, 2: 0, 3: TOKENS}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draw_that_raises_is_one_requests(
    adapter: CausalLM, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """A token whose bytes are not known, where log-probabilities are wanted: found out after logits are overwritten."""

    def requests() -> list[Work]:
        return [
            request(key, logprobs=2, temperature=temperature, seed=key, logit_bias={40: 1.5}, presence_penalty=0.5)
            for key in range(4)
        ]

    alone = [run(engine_of(adapter, kv_blocks=BLOCKS), [it]).answers[it.key][0] for it in requests()]
    victim = alone[1].token_ids[4]
    sound = [key for key in range(4) if victim not in seen(alone[key].logprobs)]
    assert adapter.vocabulary is not None
    known = adapter.vocabulary.token_bytes

    def token_bytes(token_id: int) -> bytes:
        if token_id == victim:
            raise Planted("no such token")
        return known(token_id)

    monkeypatch.setattr(adapter.vocabulary, "token_bytes", token_bytes)
    out = run(engine_of(adapter, kv_blocks=BLOCKS), requests())
    assert 1 in out.errors
    assert sound, "a test that tests nothing"
    for key in sound:
        assert out.answers[key][0].token_ids == alone[key].token_ids


# ---- memory


def test_a_step_out_of_memory_runs_in_smaller_passes_and_nobody_notices(
    adapter: CausalLM, alone: list[list[int]]
) -> None:
    faulty = FaultyLM.of(adapter)
    faulty.memory = 5
    engine = engine_of(faulty, kv_blocks=BLOCKS)
    out = run(engine, [request(key) for key in range(BATCH)])
    assert_others_unharmed(out, set(), alone)
    assert max(faulty.decoder.passes) <= 5
    assert engine.counters()["out_of_memory_total"] == 1, "the limit is kept in mind"
    assert_idle(engine)


def test_a_request_that_fits_into_no_memory_fails_alone_and_makes_no_pass_of_others_smaller(
    adapter: CausalLM, alone: list[list[int]]
) -> None:
    faulty = FaultyLM.of(adapter)
    faulty.hungry.add(5)
    engine = engine_of(faulty, kv_blocks=BLOCKS)
    out = run(engine, [request(key) for key in range(BATCH)])
    assert_others_unharmed(out, {5}, alone)
    error = out.errors[5]
    assert (error.status, error.code, error.stage) == (503, "out_of_memory", "llm")
    assert engine._isolated.limit.now == engine._isolated.limit.most
    later = run(engine, [request(7)])
    assert later.answers[7][0].token_ids == alone[7]


def test_passes_grow_again_when_memory_suffices(adapter: CausalLM) -> None:
    faulty = FaultyLM.of(adapter)
    faulty.memory = 4
    engine = engine_of(faulty, kv_blocks=BLOCKS)
    run(engine, [request(key) for key in range(BATCH)])
    low = engine._isolated.limit.now
    assert low <= 4
    faulty.memory = 1 << 30
    for _ in range(RECOVERY_BATCHES // TOKENS + 1):
        run(engine, [request(0)])
    assert low < engine._isolated.limit.now <= low + 2


def test_log_probabilities_of_a_prompt_are_whole_when_it_is_computed_in_pieces(adapter: CausalLM) -> None:
    wanted = work(0, STORY[:30], max_tokens=2, logprobs=1, echo=True)
    whole = run(engine_of(adapter, kv_blocks=BLOCKS), [wanted]).answers[0][0].logprobs
    faulty = FaultyLM.of(adapter)
    faulty.memory = 7
    pieces = run(engine_of(faulty, kv_blocks=BLOCKS), [wanted]).answers[0][0].logprobs
    assert [entry.token_id for entry in pieces] == [entry.token_id for entry in whole]
    assert [entry.logprob for entry in pieces[1:]] == pytest.approx([entry.logprob for entry in whole[1:]], abs=1e-4)


# ---- when the worker ends


class Lost(RuntimeError):
    pass


class LosingRuntime(CpuRuntime):
    def fault(self, error: BaseException) -> Fault:
        return Fault.DEVICE if isinstance(error, Lost) else super().fault(error)


def test_a_lost_device_ends_the_worker_at_once(adapter: CausalLM) -> None:
    faulty = FaultyLM.of(adapter)
    engine = engine_of(faulty, kv_blocks=BLOCKS)
    engine._faults.runtime = LosingRuntime("cpu", {})
    faulty.broken = Lost("the context is gone")
    engine.admit(request(0))
    with pytest.raises(Lost):
        engine.step(Collector())


def test_a_model_that_fails_on_its_warm_up_too_ends_the_worker(adapter: CausalLM) -> None:
    faulty = FaultyLM.of(adapter)
    engine, out = engine_of(faulty, kv_blocks=BLOCKS), Collector()
    faulty.broken = RuntimeError("a weight is gone")
    for key in range(3):
        engine.admit(request(key))
    with pytest.raises(BrokenModel, match="a weight is gone"):
        engine.step(out)
    assert set(out.errors) == {0, 1, 2}


def test_requests_that_are_all_bad_end_no_worker(adapter: CausalLM, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(FaultyLM.of(adapter, dict.fromkeys(range(3), "prefill")), kv_blocks=6)
    with caplog.at_level(logging.CRITICAL):
        for _ in range(3):
            out = run(engine, [request(key) for key in range(3)])
            assert set(out.errors) == {0, 1, 2}
    assert_idle(engine)


def seen(logprobs: list[TokenLogprob]) -> set[int]:
    """Every token that these tell of, chosen or not."""
    return {entry.token_id for entry in logprobs} | {token_id for entry in logprobs for token_id, _, _ in entry.top}


# ---- halves of a split stage


def split(first: CausalLM, second: CausalLM) -> Pair:
    return Pair(
        half(first, "prefill", block_size=16, kv_blocks=64),
        half(second, "decode", block_size=8, kv_blocks=128),
    )


@pytest.mark.parametrize("place", ["prefill", "decode", "nan", "sampled"])
@pytest.mark.parametrize("bad", [0, 5])
def test_one_of_eight_fails_alone_in_either_half(
    adapter: CausalLM, alone: list[list[int]], place: str, bad: int
) -> None:
    late = PROMPT + bad + 3 if place != "nan" else 0
    faulty = FaultyLM.of(adapter, {bad: place}, late)
    pair = split(faulty, adapter) if place in ("prefill", "nan") else split(adapter, faulty)
    out = pair.run([work(key, STORY[key : key + PROMPT + key], max_tokens=TOKENS, ignore_eos=True) for key in range(8)])
    assert set(out.errors) == {bad}
    assert (out.errors[bad].code, out.errors[bad].stage) == ("stage_failed", "llm")
    assert_others_unharmed(out, {bad}, alone)


def test_a_prompt_that_finds_no_memory_to_leave_fails_alone(
    adapter: CausalLM, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, allocate = split(adapter, adapter), Collector.allocate

    def full(out: Collector, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        if key == 3:
            raise OSError(12, "Cannot allocate memory")
        return allocate(out, key, kind, meta, specs)

    monkeypatch.setattr(Collector, "allocate", full)
    out = pair.run([work(key, STORY[key : key + PROMPT + key], max_tokens=TOKENS, ignore_eos=True) for key in range(8)])
    assert set(out.errors) == {3}
    assert_others_unharmed(out, {3}, alone)


# ---- anything


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whoever_fails_wherever_in_whatever_company(adapter: CausalLM, rng: random.Random) -> None:
    count = 12
    bad = {key: rng.choice(PLACES) for key in rng.sample(range(count), rng.randrange(count))}
    faulty = FaultyLM.of(adapter, bad, late=rng.choice([0, 10, 25]))
    faulty.memory = rng.choice([3, 9, 40, 1 << 30])
    engine = engine_of(
        faulty,
        kv_blocks=rng.choice([14, 30, 100]),
        block_size=rng.choice([4, 8, 16]),
        step_tokens=rng.choice([8, 40, 200]),
        max_batch=rng.choice([2, 5, 30]),
        prefix_cache=rng.random() < 0.7,
    )
    out = Collector()
    works = []
    for key in range(count):
        start, length, most = rng.randrange(30), rng.randrange(1, 35), rng.randrange(1, 15)
        choices, temperature = rng.choice([1, 1, 3]), rng.choice([0.0, 1.0])
        prompt = STORY[start : start + length]
        it = work(key, prompt, max_tokens=most, n=choices, temperature=temperature, seed=key, ignore_eos=True)
        works.append(it)
        engine.admit(it)
        for _ in range(rng.randrange(3)):
            engine.step(out)
    while engine.runnable:
        assert engine.step(out)
    assert_idle(engine)
    assert caches_are_finite(engine._runner.cache.layers)
    assert out.errors.keys() | out.usage.keys() == set(range(count))
    assert not out.errors.keys() & out.usage.keys()
    assert {key for key in out.errors if key not in bad} == set()
    for it in rng.sample([it for it in works if it.key in out.usage], min(3, len(out.usage))):
        solo = run(engine_of(adapter, kv_blocks=BLOCKS), [it])
        for index, answer in solo.answers[it.key].items():
            assert out.answers[it.key][index].token_ids == answer.token_ids
