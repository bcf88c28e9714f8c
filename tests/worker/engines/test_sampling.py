"""The batched sampler against a plain one-row reading of the same rules, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.platforms.cpu.kernels import KERNELS
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Sampling
from omni_actors.worker.engines.autoregressive.sampling import SampledBatch, SamplingState, resolve, sample, validate


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As in a worker; and small operations are slow when threads of a busy machine share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def spell(token_id: int) -> bytes:
    return b"<%d>" % token_id


def make_row(
    *, prompt: Sequence[int] = (), output: Sequence[int] = (), stops: Sequence[int] = (), **fields: Any
) -> SamplingState:
    choice = fields.pop("choice", 0)
    stage = fields.pop("stage", "llm")
    fields.setdefault("seed", 1)
    row = SamplingState(resolve(Sampling(**fields)), stage=stage, choice=choice, prompt=prompt, stop_ids=stops)
    for token_id in output:
        row.append(token_id)
    return row


def choose(logits: Any, *rows: SamplingState) -> SampledBatch:
    return sample(torch.tensor(np.atleast_2d(logits), dtype=torch.float32), rows, spell, KERNELS)


def token(logits: Sequence[float], **fields: Any) -> int:
    return choose(logits, make_row(**fields)).token_ids[0]


# -- a plain reading of the rules -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    fields: dict[str, Any]
    prompt: list[int]
    output: list[int]
    stops: list[int]

    def row(self) -> SamplingState:
        return make_row(prompt=self.prompt, output=self.output, stops=self.stops, **self.fields)


def edited(logits: np.ndarray[Any, Any], case: Case) -> np.ndarray[Any, Any]:
    x = logits.astype(np.float64)
    get = case.fields.get
    for token_id, bias in get("logit_bias", {}).items():
        x[token_id] += bias
    if len(case.output) < get("min_tokens", 0):
        x[case.stops] = -math.inf
    repetition = get("repetition_penalty", 1.0)
    for token_id in {*case.prompt, *case.output}:
        x[token_id] = x[token_id] / repetition if x[token_id] > 0 else x[token_id] * repetition
    for token_id in set(case.output):
        x[token_id] -= get("frequency_penalty", 0.0) * case.output.count(token_id) + get("presence_penalty", 0.0)
    return x


def distribution(x: np.ndarray[Any, Any], fields: dict[str, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """Weights by token id, and how close (relative) a token is to being on the other side of a limit."""
    p = np.exp((x - x.max()) / fields["temperature"])
    p /= p.sum()
    close = math.inf

    def cut(keep_from: float) -> None:
        nonlocal p, close
        if keep_from == 0:
            return
        others = p[(p > 0) & (p != keep_from)]
        close = min(close, float(np.abs(others / keep_from - 1).min(initial=math.inf)))
        p = np.where(p >= keep_from, p, 0)

    if fields.get("min_p"):
        limit = fields["min_p"] * p.max()
        close = min(close, float(np.abs(p / limit - 1).min()))
        p = np.where(p >= limit, p, 0)
    if 0 < fields.get("top_k", 0) < len(p):
        cut(np.sort(p)[-fields["top_k"]])
    if fields.get("top_p", 1.0) < 1:
        ranked = np.sort(p)[::-1]
        before = np.cumsum(ranked) - ranked
        goal = fields["top_p"] * p.sum()
        close = min(close, float(np.abs(before / max(goal, 1e-9) - 1).min()))
        cut(ranked[max(0, int((before < goal).sum()) - 1)])
    return p, close


def uniform_numbers(**fields: Any) -> list[float]:
    return [make_row(output=[0] * i, **fields).uniform() for i in range(3)]


FIELDS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7])},
    optional={
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 300, 10_000]),
        "top_p": st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.01, 0.2, 1.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.5, 2.0]),
        "repetition_penalty": st.sampled_from([0.7, 1.0, 1.3]),
        "logit_bias": st.dictionaries(st.integers(0, 6), st.sampled_from([-100.0, -1.0, 3.0, 100.0]), max_size=3),
        "min_tokens": st.integers(0, 4),
    },
)
IDS = st.lists(st.integers(0, 6), max_size=5)
CASES = st.builds(Case, FIELDS, IDS, IDS, st.lists(st.integers(0, 6), max_size=2))


@settings(max_examples=150, deadline=None)
@given(st.lists(CASES, min_size=1, max_size=12), st.sampled_from([7, 255, 256, 300, 1000]), st.integers(0, 2**32 - 1))
def test_a_batch_chooses_as_the_rules_say_for_each_row(cases: list[Case], width: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (len(cases), width)).astype(np.float32)
    chosen = choose(logits, *(case.row() for case in cases))
    assert chosen.broken == []
    for i, case in enumerate(cases):
        x = edited(logits[i], case)
        if case.fields["temperature"] == 0:
            assert x[chosen.token_ids[i]] >= x.max() - 1e-4
            continue
        weights, close = distribution(x, case.fields)
        if close < 1e-5:
            continue
        position = case.row().uniform() * weights.sum()
        cdf = np.cumsum(weights)
        assert weights[chosen.token_ids[i]] > 0
        assert cdf[chosen.token_ids[i]] >= position - 1e-5
        assert cdf[chosen.token_ids[i]] - weights[chosen.token_ids[i]] <= position + 1e-5


@settings(max_examples=60, deadline=None)
@given(st.lists(CASES, min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_a_row_chooses_the_same_in_any_company(cases: list[Case], random: Any) -> None:
    logits = np.random.default_rng(len(cases)).normal(0, 3, (len(cases), 300)).astype(np.float32)
    alone = [choose(logits[i], case.row()).token_ids[0] for i, case in enumerate(cases)]
    order = list(range(len(cases)))
    random.shuffle(order)
    together = choose(logits[order], *(cases[i].row() for i in order)).token_ids
    assert together == [alone[i] for i in order]


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.9, "min_p": 0.01}],
)
def test_draws_follow_the_distribution(fields: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(0, 1, 600).astype(np.float32)
    logits[[0, 7, 255, 256, 511, 512, 599]] = [6.0, 5.5, 6.5, 5.0, 6.0, 5.8, 6.2]
    draws = 8000
    rows = [make_row(seed=s, **fields) for s in range(draws)]
    counts = np.zeros(600)
    for start in range(0, draws, 2000):
        batch = rows[start : start + 2000]
        np.add.at(counts, choose(np.tile(logits, (len(batch), 1)), *batch).token_ids, 1)
    weights, _ = distribution(logits.astype(np.float64), {"temperature": 1.0, **fields})
    expected = draws * weights / weights.sum()
    assert counts[weights == 0].sum() == 0
    big = expected >= 20
    bins = np.append(counts[big], counts[~big].sum())
    want = np.append(expected[big], expected[~big].sum())
    chi2 = float(((bins - want) ** 2 / np.maximum(want, 1e-9)).sum())
    freedom = max(1, int(big.sum()) - (expected[~big].sum() == 0))
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


# -- the generator ----------------------------------------------------------------------------------------------------


def test_the_number_depends_on_seed_stage_choice_and_position_and_on_nothing_else() -> None:
    base = uniform_numbers(seed=1)
    others = [
        uniform_numbers(seed=2),
        uniform_numbers(seed=1, stage="talker"),
        uniform_numbers(seed=1, choice=1),
        uniform_numbers(seed=-1),
    ]
    assert len({*base, *(u for other in others for u in other)}) == 15
    assert uniform_numbers(seed=1, temperature=0.3, prompt=[5], logprobs=2) == base
    assert base == [0.3149246466036857, 0.855692139648454, 0.7803047276920552], "the same in any process, for ever"


def test_numbers_are_uniform() -> None:
    row = make_row(seed=3)
    numbers = []
    for _ in range(10_000):
        numbers.append(row.uniform())
        row.append(0)
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 45
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_a_row_rebuilt_from_its_tokens_goes_on_the_same() -> None:
    """What a preempted or resumed request relies on."""
    rng = np.random.default_rng(5)
    steps = rng.normal(0, 2, (30, 64)).astype(np.float32)
    fields: dict[str, Any] = {
        "seed": 9,
        "top_p": 0.95,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.2,
        "min_tokens": 20,
    }
    through = make_row(prompt=[1, 2, 3], stops=[4], **fields)
    tokens: list[int] = []
    for logits in steps:
        tokens.append(choose(logits, through).token_ids[0])
        through.append(tokens[-1])
    resumed = make_row(prompt=[1, 2, 3], stops=[4], output=tokens[:11], **fields)
    for logits, want in zip(steps[11:], tokens[11:], strict=True):
        assert choose(logits, resumed).token_ids == [want]
        resumed.append(want)
    assert 4 not in tokens[:20]
    assert len(set(tokens)) > 10


def test_without_a_seed_each_request_has_its_own_in_every_attempt() -> None:
    seeds = [resolve(Sampling(), request_id=name).seed for name in ("one", "other", "one")]
    assert seeds[0] == seeds[2] != seeds[1]


# -- penalties and bans, by hand --------------------------------------------------------------------------------------


def test_repetition_counts_prompt_and_output_presence_and_frequency_only_output() -> None:
    logits = [2.0, 1.9, -1.0, -1.1]
    greedy: dict[str, Any] = {"temperature": 0.0}
    assert token(logits, **greedy) == 0
    assert token(logits, prompt=[0], repetition_penalty=1.2, **greedy) == 1
    assert token(logits, prompt=[0], presence_penalty=2.0, frequency_penalty=2.0, **greedy) == 0
    assert token(logits, output=[0], presence_penalty=0.2, **greedy) == 1
    assert token(logits, output=[0, 1, 1], presence_penalty=2.0, **greedy) == 0, "once or twice is the same"
    assert token(logits, output=[0, 0, 1], frequency_penalty=0.2, **greedy) == 1, "twice counts twice"
    assert token([-1.0, -1.1], prompt=[0], repetition_penalty=1.2, **greedy) == 1, "a negative logit is multiplied"


def test_a_penalty_that_cancels_to_zero_is_counted_once() -> None:
    row = make_row(output=[0, 0], presence_penalty=0.5, frequency_penalty=-0.5)
    assert row.penalized[1].tolist() == [-0.5]


def test_many_distinct_tokens_are_all_penalized() -> None:
    row = make_row(prompt=range(40), output=range(30, 200), repetition_penalty=1.1, frequency_penalty=1.0)
    ids, weights = row.penalized
    assert sorted(ids) == list(range(200))
    assert weights[ids < 30].tolist() == [0.0] * 30
    assert weights[ids >= 30].tolist() == [1.0] * 170


def test_bias_moves_and_bans_and_stop_tokens_wait_for_min_tokens() -> None:
    greedy: dict[str, Any] = {"temperature": 0.0}
    assert token([1.0, 0.0], logit_bias={1: 2.0}, **greedy) == 1
    assert token([1.0, 0.0], logit_bias={0: -100.0}, **greedy) == 1
    assert token([1.0, 0.0], stops=[0], min_tokens=2, output=[1], **greedy) == 1
    assert token([1.0, 0.0], stops=[0], min_tokens=2, output=[1, 1], **greedy) == 0


def test_narrow_limits_leave_the_best_and_ties_stay() -> None:
    logits = [0.0, 5.0, 4.9]
    narrow: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-6}]
    for fields in narrow:
        assert {token(logits, **{"seed": s, **fields}) for s in range(50)} == {1}
    assert {token([0.0, 5.0, 5.0], seed=s, top_k=1) for s in range(50)} == {1, 2}
    assert {token(logits, seed=s, temperature=1e30) for s in range(50)} == {0, 1, 2}


def test_a_row_that_is_not_finite_is_named_and_harms_no_other() -> None:
    good = [0.0, 9.0, 0.0]
    logits = [good, [0.0, math.nan, 0.0], good, [0.0, math.inf, 0.0], [1.0, -math.inf, 0.0], good]
    for temperature in (0.0, 0.1):
        rows = [make_row(temperature=temperature) for _ in range(5)]
        rows.append(make_row(temperature=temperature, stops=[0, 1, 2], min_tokens=1))
        chosen = choose(logits, *rows)
        assert chosen.broken == [1, 3, 5], "the last has nothing left to choose"
        assert [chosen.token_ids[i] for i in (0, 2, 4)] == [1, 1, 0]


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = [3.0, 2.0, 1.0, 0.0]
    raw = np.array(logits) - np.log(np.exp(logits).sum())
    rows = [
        make_row(temperature=0.0, logprobs=2, logit_bias={3: 50.0}),
        make_row(temperature=0.0),
        make_row(temperature=0.7, logprobs=0, top_k=1),
    ]
    first, second, third = choose([logits] * 3, *rows).logprobs
    assert second is None
    assert first is not None
    assert (first.token_id, first.token) == (3, b"<3>")
    assert first.logprob == pytest.approx(raw[3], abs=1e-5)
    assert [(t, b) for t, b, _ in first.top] == [(0, b"<0>"), (1, b"<1>")]
    assert [v for *_, v in first.top] == pytest.approx(raw[:2], abs=1e-5)
    assert third is not None
    assert (third.token_id, third.top) == (0, ())


@given(st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_the_greatest_are_those_that_torch_finds(count: int, seed: int) -> None:
    values = torch.tensor(np.random.default_rng(seed).integers(0, 40, (3, 50)), dtype=torch.float32)
    assert torch.equal(KERNELS.greatest(values, count), values.topk(count, dim=-1).values)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": math.nan}),
        ("temperature", {"temperature": math.inf}),
        ("top_p", {"top_p": 1.1}),
        ("top_p", {"top_p": -0.1}),
        ("min_p", {"min_p": 2.0}),
        ("top_k", {"top_k": -2}),
        ("presence_penalty", {"presence_penalty": 2.1}),
        ("frequency_penalty", {"frequency_penalty": -2.1}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": -1}),
        ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
        ("n", {"n": 0}),
        ("n", {"n": 1000}),
        ("logprobs", {"logprobs": 21}),
        ("seed", {"seed": 1 << 64}),
        ("stop", {"stop": ["a", ""]}),
        ("stop", {"stop": ["x" * 5000]}),
        ("stop_token_ids", {"stop_token_ids": [100]}),
        ("logit_bias", {"logit_bias": {-1: 0.0}}),
        ("logit_bias", {"logit_bias": {1: 101.0}}),
        ("logit_bias", {"logit_bias": {1: math.nan}}),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(OmniError) as refused:
        validate(Sampling(**fields), 100)
    assert (refused.value.info.status, refused.value.info.param) == (400, param)
    assert param in refused.value.info.message


def test_the_edges_of_every_range_are_allowed() -> None:
    validate(Sampling(), 100)
    validate(Sampling(max_tokens=0, echo=True), 100)
    validate(
        Sampling(
            temperature=0.0, top_p=0.0, top_k=-1, min_p=1.0, presence_penalty=-2, frequency_penalty=2, logprobs=20,
            n=128, repetition_penalty=0.01, max_tokens=1, min_tokens=1, seed=-(1 << 63), stop=["x"],
            stop_token_ids=[99], logit_bias={99: -100.0},
        ),
        100,
    )  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0.0, 1e-45, 1e-5, 1.0, 3.4e38]),
            "top_p": st.sampled_from([0.0, 1e-45, 0.5, 1.0]),
            "top_k": st.sampled_from([-1, 0, 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 10**30]),
            "min_p": st.sampled_from([0.0, 1e-45, 1.0]),
            "presence_penalty": st.sampled_from([-2.0, 2.0]),
            "frequency_penalty": st.sampled_from([-2.0, 2.0]),
            "repetition_penalty": st.sampled_from([0.01, 1.0, 3.4e38]),
            "logprobs": st.sampled_from([0, 20]),
            "seed": st.sampled_from([-(1 << 63), (1 << 64) - 1]),
            "min_tokens": st.sampled_from([0, (1 << 64) - 1]),
            "logit_bias": st.just({0: 100.0, 2: -100.0}),
        },
    ),
    st.sampled_from([3, 256, 300]),
)
def test_whatever_is_in_range_can_be_sampled(fields: dict[str, Any], width: int) -> None:
    """It may come out as broken (a penalty that overflows), which fails that request; it raises nothing."""
    fields = {"max_tokens": 1 << 64, **fields}
    validate(Sampling(**fields), width)
    rows = [make_row(prompt=[0, 1], output=[1], stops=[2], **fields), make_row(temperature=1.0)]
    logits = np.random.default_rng(0).normal(size=(2, width))
    found = choose(logits, *rows)
    assert all(0 <= chosen < width for chosen in found.token_ids)
    assert 1 not in found.broken
    if fields.get("logprobs") is not None:
        assert found.logprobs[0] is not None
        assert len(found.logprobs[0].top) == min(fields["logprobs"], width)


def test_what_a_request_leaves_open_comes_from_the_first_default_that_has_it() -> None:
    deployment = {"temperature": 0.2, "top_k": None}
    model = {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "unrelated": "x"}
    filled = resolve(Sampling(top_p=1.0), deployment, model)
    assert (filled.temperature, filled.top_k, filled.top_p) == (0.2, 40, 1.0)
    assert (filled.repetition_penalty, filled.min_p) == (1.1, 0.0)
    assert resolve(Sampling(temperature=0.0, top_k=-1), deployment, model).greedy
    assert resolve(Sampling(top_k=-1), model).top_k == 0
