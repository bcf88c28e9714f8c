"""The vLLM engine in this process: what it says, what it gives back, and what it goes on with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.vllm.conftest import EAGER, Direct
from tests.worker.engines.ar_driver import Collector, work

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello, Prefix, Query
from omni_actors.protocol.params import Constraint
from omni_actors.worker.engine import Engine, Work

PROMPT = list(range(32, 64))
LONG = [32 + i * 7 % 90 for i in range(300)]
MAX_STEPS = 5000

pytestmark = [pytest.mark.deadline(300), pytest.mark.usefixtures("worker_environment")]


def run(engine: Engine, works: list[Work], *, steps: int = MAX_STEPS, out: Collector | None = None) -> Collector:
    """Run all, to the end or for so many steps."""
    out = out or Collector()
    for it in works:
        engine.admit(it)
    for _ in range(steps):
        if not engine.runnable:
            return out
        assert engine.step(out), "runnable, but nothing ran"
    assert steps < MAX_STEPS, "not done"
    return out


class Numbered:
    """Works with keys that are never used twice."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, prompt: list[int] | str, **sampling: Any) -> Work:
        self.last += 1
        return work(self.last, prompt, **sampling)


new = Numbered()


@pytest.fixture(scope="module")
def loaded(tiny_qwen3: Path, worker_environment: None) -> Iterator[Engine]:
    from omni_actors.worker.engines.vllm import VllmEngine

    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine="omni_actors.worker.engines.vllm:VllmEngine",
        adapter="omni_actors.models.causal_lm.prompted:PromptedLM",
        model=str(tiny_qwen3),
        options={**EAGER, "kv_events": True},
    )
    engine = VllmEngine(hello)
    info = engine.load(lambda text, fraction: None)
    assert info["architecture"] == "Qwen3ForCausalLM"
    yield engine
    engine.close()


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """At the end nothing is held: no request, no block."""
    yield loaded
    kept = {"kv_blocks_cached"}
    gauges = {name: it for name, it in loaded.counters().items() if not name.endswith("_total") and name not in kept}
    for key in range(new.last + 1):  # of a test that failed
        loaded.abort(key)
    assert gauges == dict.fromkeys(gauges, 0)


def tokens(out: Collector, it: Work, index: int = 0) -> list[int]:
    assert it.key not in out.errors, out.errors
    return out.answers[it.key][index].token_ids


def test_greedy_tokens_and_their_scores_are_those_of_vllm_itself(
    engine: Engine, tiny_qwen3: Path, direct: Direct
) -> None:
    prompts = [PROMPT, LONG, PROMPT[:5], list(range(100, 180))]
    sampling = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}
    expected = direct(tiny_qwen3, [{"tokens": prompt, "sampling": sampling} for prompt in prompts])
    works = [new(prompt, max_tokens=40, ignore_eos=True, logprobs=0) for prompt in prompts]
    out = run(engine, works)
    assert len({token for it in works for token in tokens(out, it)}) > 20, "it says nothing"
    for it, other in zip(works, expected, strict=True):
        assert tokens(out, it) == other["tokens"]
        scores = [score.logprob for score in out.answers[it.key][0].logprobs]
        assert scores == pytest.approx(other["logprobs"], abs=1e-4)
    alone = [run(engine, [new(prompt, max_tokens=40, ignore_eos=True)]) for prompt in prompts]
    for it, one in zip(works, alone, strict=True):
        (answer,) = one.answers.values()
        assert answer[0].token_ids == tokens(out, it), "beside others it says something else"


def test_deltas_joined_are_the_whole_and_usage_counts_it(engine: Engine) -> None:
    it = new(PROMPT, max_tokens=30, ignore_eos=True)
    out = run(engine, [it])
    answer = out.answers[it.key][0]
    assert len(answer.deltas) > 10
    assert "".join(answer.deltas) == answer.text
    assert answer.finish_reason == "length"
    usage = out.usage[it.key]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(PROMPT), 30)


def test_a_prompt_that_was_there_before_is_not_computed_again(engine: Engine) -> None:
    prompt = [33 + i * 5 % 90 for i in range(300)]
    run(engine, [new(prompt, max_tokens=2)])
    it = new(prompt, max_tokens=2)
    cached = run(engine, [it]).usage[it.key].cached_tokens
    assert cached >= 256, "two blocks of 128"


def test_what_is_cached_is_known_by_its_hashes(engine: Engine) -> None:
    class Asked(Collector):
        def reply(self, query: int, value: Any, error: Any = None) -> None:
            self.value = value

    before = engine.counters()["kv_blocks_stored_total"]
    run(engine, [new([34 + i * 11 % 90 for i in range(300)], max_tokens=2)])
    assert engine.counters()["kv_blocks_stored_total"] >= before + 2
    out = Asked()
    engine.query(Query(1, "kv_blocks"), out)
    assert len(out.value["hashes"]) == engine.counters()["kv_blocks_cached"] >= 2
    assert len(set(out.value["hashes"])) == len(out.value["hashes"])


def test_abort_gives_back_what_it_held_at_once(engine: Engine) -> None:
    works = [new(LONG, max_tokens=200, ignore_eos=True, n=2), new(PROMPT, max_tokens=20, ignore_eos=True)]
    out = run(engine, works, steps=3)
    held = engine.counters()["kv_blocks_used"]
    engine.abort(works[0].key)
    assert engine.counters()["kv_blocks_used"] < held
    run(engine, [], out=out)
    assert tokens(out, works[1]) == tokens(run(engine, [(again := new(PROMPT, max_tokens=20, ignore_eos=True))]), again)
    assert works[0].key not in out.usage


def test_seeds_repeat_and_choices_differ(engine: Engine) -> None:
    def say(seed: int, *others: Work) -> list[list[int]]:
        it = new(PROMPT, max_tokens=12, temperature=1.0, seed=seed, n=3, ignore_eos=True)
        out = run(engine, [it, *others])
        return [tokens(out, it, index) for index in range(3)]

    first = say(7)
    assert say(7) == first
    assert say(7, new(LONG, max_tokens=5), new(PROMPT, max_tokens=9, temperature=1.5, seed=7)) == first
    assert say(8) != first
    assert len({tuple(it) for it in first}) == 3


def test_alternatives_are_the_best_in_order(engine: Engine) -> None:
    it = new(PROMPT, max_tokens=8, logprobs=3, ignore_eos=True)
    for entry in run(engine, [it]).answers[it.key][0].logprobs:
        assert len(entry.top) == 3
        assert [score for _, _, score in entry.top] == sorted((score for _, _, score in entry.top), reverse=True)
        assert entry.top[0][0] == entry.token_id
        assert entry.top[0][2] == pytest.approx(entry.logprob)


def test_an_echo_has_the_prompts_own_scores(engine: Engine) -> None:
    it, bare = (
        new("hello world", max_tokens=4, echo=True, logprobs=1),
        new("hello world", max_tokens=0, echo=True, logprobs=1),
    )
    out = run(engine, [it, bare])
    answer = out.answers[it.key][0]
    assert answer.text.startswith("hello world")
    assert len(answer.logprobs) == 11 + len(answer.token_ids)
    assert out.answers[bare.key][0].text == "hello world"
    assert [e.logprob for e in out.answers[bare.key][0].logprobs[1:]] == [e.logprob for e in answer.logprobs[1:11]]


def test_stop_strings_stop_and_are_no_text(engine: Engine) -> None:
    whole = new(PROMPT, max_tokens=40, ignore_eos=True)
    text = run(engine, [whole]).answers[whole.key][0].text
    stop = text[9:11]
    it = new(PROMPT, max_tokens=40, ignore_eos=True, stop=[stop])
    answer = run(engine, [it]).answers[it.key][0]
    assert answer.finish_reason == "stop"
    assert answer.text == text[: text.index(stop)]


def test_end_of_sequence_bias_and_bounds(engine: Engine) -> None:
    from tests.worker.engines.tiny_models import EOS

    ended = new(PROMPT, max_tokens=9, logit_bias={EOS: 100.0})
    late = new(PROMPT, max_tokens=9, logit_bias={EOS: 100.0}, min_tokens=4)
    ignored = new(PROMPT, max_tokens=9, logit_bias={EOS: 100.0}, ignore_eos=True)
    out = run(engine, [ended, late, ignored])
    assert tokens(out, ended) == [EOS]
    assert out.answers[ended.key][0].finish_reason == "stop"
    assert len(tokens(out, late)) == 5
    assert tokens(out, ignored) == [EOS] * 9
    with pytest.raises(OmniError, match="maximum context length"):
        engine.admit(new([5] * 600))
    with pytest.raises(OmniError, match="must be between"):
        engine.admit(new(PROMPT, top_p=1.5))
    with pytest.raises(OmniError, match="not below"):
        engine.admit(new([70000]))


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 3, "n": 2},
    "scored": {"logprobs": 2, "stop": ["zzzz"]},
    "least": {"min_tokens": 10, "temperature": 0.8, "seed": 1},
    "penalties": {"repetition_penalty": 1.3, "temperature": 1.0, "seed": 2},
    "counted": {"presence_penalty": 1.5, "frequency_penalty": 0.7, "temperature": 0.0},
    "all penalties": {
        "presence_penalty": 0.9,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "temperature": 1.0,
        "seed": 5,
    },
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_resumed_answer_is_the_whole_one_and_nothing_is_told_twice(engine: Engine, name: str) -> None:
    sampling = {"max_tokens": 24, "ignore_eos": True, **SAMPLINGS[name]}
    n = sampling.get("n", 1)
    whole = new(PROMPT, **sampling)
    answers = run(engine, [whole]).answers[whole.key]
    for cut in (1, 2, 11, 23, 24):
        reported = tuple(tuple(answers[index].token_ids[:cut]) for index in range(n))
        it = new(PROMPT, routed=True, **sampling)
        it.prefix = Prefix(reported)
        out = run(engine, [it])
        for index in range(n):
            assert list(reported[index]) + out.answers[it.key][index].token_ids == answers[index].token_ids, (
                cut,
                index,
            )
            assert answers[index].text.endswith(out.answers[it.key][index].text)
        assert "".join(out.emitted[it.key]) == answers[0].text, "the next stage has all of it again"
        assert out.usage[it.key].completion_tokens == 24 * n
        if sampling.get("logprobs") is not None:
            scores = [e.logprob for e in answers[0].logprobs[24 - len(out.answers[it.key][0].logprobs) :]]
            assert [e.logprob for e in out.answers[it.key][0].logprobs] == pytest.approx(scores, abs=1e-4)


FORMS: dict[str, tuple[Constraint, str]] = {
    "regex": (Constraint(regex="[a-f]{3}-[0-9]{4}"), r"[a-f]{3}-\d{4}"),
    "choice": (Constraint(choice=["north", "south east"]), r"north|south east"),
    "json": (
        Constraint(
            json='{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], '
            '"additionalProperties": false}'
        ),
        r"\{\s*\"a\"\s*:\s*(true|false)\s*\}",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_of_the_form_that_is_asked_for_also_when_it_is_resumed(engine: Engine, name: str) -> None:
    constraint, pattern = FORMS[name]
    sampling = {"max_tokens": 120, "constraint": constraint, "temperature": 1.0, "seed": 5}
    whole = new(PROMPT, **sampling)
    answer = run(engine, [whole, new(LONG, max_tokens=10)]).answers[whole.key][0]
    assert re.fullmatch(pattern, answer.text), answer.text
    assert answer.finish_reason == "stop"
    it = new(PROMPT, **sampling)
    it.prefix = Prefix((tuple(answer.token_ids[:3]),))
    out = run(engine, [it])
    assert answer.token_ids[:3] + tokens(out, it) == answer.token_ids


def test_a_form_that_cannot_be_is_the_clients_mistake(engine: Engine) -> None:
    for broken in (Constraint(regex="(a"), Constraint(json='{"type": 3}'), Constraint(json="{")):
        with pytest.raises(OmniError) as refused:
            engine.admit(new(PROMPT, constraint=broken))
        assert refused.value.info.status == 400


def test_without_credit_nothing_leaves_and_with_it_everything_does(engine: Engine) -> None:
    it = new(PROMPT, max_tokens=12, ignore_eos=True, routed=True)
    out = Collector()
    out.blocked.add(it.key)
    engine.admit(it)
    while engine.runnable and engine.step(out):
        pass
    assert engine.runnable, "its answer waits"
    assert not out.emitted[it.key]
    assert not out.usage
    out.blocked.clear()
    run(engine, [], out=out)
    assert "".join(out.emitted[it.key]) == out.answers[it.key][0].text
    assert out.usage[it.key].completion_tokens == 12


def test_asleep_it_holds_what_it_has_and_goes_on_when_it_wakes(engine: Engine) -> None:
    class Asked(Collector):
        def reply(self, query: int, value: Any, error: Any = None) -> None:
            self.value = value

    whole = new(PROMPT, max_tokens=16, ignore_eos=True)
    expected = tokens(run(engine, [whole]), whole)
    it, out = new(PROMPT, max_tokens=16, ignore_eos=True), Asked()
    run(engine, [it], steps=4, out=out)
    engine.query(Query(1, "sleep", {"level": 0}), out)
    assert out.value == {"asleep": True}
    assert not engine.runnable
    with pytest.raises(OmniError, match="enable_sleep_mode"):
        engine.query(Query(3, "sleep", {"level": 1}), out)
    engine.query(Query(2, "wake"), out)
    run(engine, [], steps=4, out=out)
    engine.query(Query(4, "sleep"), out)
    later = new(LONG, max_tokens=3, ignore_eos=True)
    engine.admit(later)
    assert engine.runnable, "a request wakes it"
    run(engine, [], out=out)
    assert tokens(out, it) == expected
    assert len(tokens(out, later)) == 3
