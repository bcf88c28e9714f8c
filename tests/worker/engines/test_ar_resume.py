"""A request that goes on where an earlier attempt was reported to be says what it would have said undisturbed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import MAX_STEPS, Answer, Collector, assert_idle, engine_of, load_adapter, run, work
from tests.worker.engines.ar_pair import Pair, half
from tests.worker.engines.ar_resume import Told, attempt, check_every_cut

from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import engine as engine_module
from omni_actors.worker.engines.autoregressive.request import PromptRequest, keep_logprobs
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk

PROMPT = list(b"What the sea says")
RUN: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
SEEDED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    return load_adapter(tiny_models.save(tmp_path_factory.mktemp("model")))


class Fresh:
    """Each attempt runs in an engine of its own, that holds nothing afterwards."""

    def __init__(self, adapter: CausalLM, **options: Any) -> None:
        self._adapter = adapter
        self._options = {"block_size": 4, "kv_blocks": 64, **options}

    def __call__(self, work: Work) -> Told:
        engine = engine_of(self._adapter, **self._options)
        told = attempt(engine, work)
        assert_idle(engine)
        return told


class Split:
    """The same in two halves: the first computes the prompt again, the second goes on behind what it was told."""

    def __init__(self, adapter: CausalLM, **options: Any) -> None:
        self._adapter = adapter
        self._options = {"block_size": 4, "kv_blocks": 64, **options}

    def __call__(self, work: Work) -> Told:
        prefill = half(self._adapter, "prefill", block_size=16, kv_blocks=64, step_tokens=8)
        pair = Pair(prefill, half(self._adapter, "decode", **self._options))
        pair.admit(work)
        told = Told()
        while pair.open:
            assert pair.turn()
            told.take(pair.out)
        pair.assert_idle()
        assert not pair.out.errors
        told.usage = pair.out.usage[work.key]
        return told


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": 3},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
        {"min_tokens": 9, "stop_token_ids": list(range(0, 256, 3))},
        {"echo": True, "logprobs": 2},
    ],
    ids=["plain", "logprobs", "penalties", "min_tokens", "echo"],
)
def test_every_cut(adapter: CausalLM, sampling: dict[str, Any], more: dict[str, Any]) -> None:
    whole, _ = check_every_cut(Fresh(adapter), work(1, PROMPT, **RUN, **sampling, **more, routed=True))
    assert len(whole.steps) > 8


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SEEDED], ids=["greedy", "seeded"])
def test_choices(adapter: CausalLM, sampling: dict[str, Any]) -> None:
    """They end at different times, and share their prompt again."""
    choices: dict[str, Any] = {"n": 3, "logprobs": 1, "max_tokens": 16, "stop_token_ids": list(range(0, 256, 7))}
    check_every_cut(Fresh(adapter), work(1, PROMPT, **sampling, **choices))
    # Where there is room for one at a time, the others wait.
    check_every_cut(Fresh(adapter, max_batch=1), work(1, PROMPT, **sampling, **choices), cuts=[1, 5, 9])


def test_a_choice_whose_tokens_have_no_scores_fails_its_request_with_the_others(
    adapter: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another one of them has got its next logits in the same step."""
    asked = work(1, PROMPT, n=2, logprobs=1, **RUN, **SEEDED)
    whole = Fresh(adapter)(asked)

    def failing(request: PromptRequest, chunk: ScheduledChunk, *more: Any) -> None:
        if chunk.sequence.index == 1:
            raise RuntimeError("no score")
        keep_logprobs(request, chunk, *more)

    monkeypatch.setattr(engine_module, "keep_logprobs", failing)
    engine = engine_of(adapter, block_size=4, kv_blocks=64)
    out = run(engine, [replace(asked, prefix=whole.prefix(5)), work(2, PROMPT, max_tokens=3, ignore_eos=True)])
    assert set(out.errors) == {1}
    assert len(out.answers[2][0].token_ids) == 3
    assert_idle(engine)


def test_choices_of_which_one_has_not_begun(adapter: CausalLM) -> None:
    asked = work(1, PROMPT, n=2, max_tokens=8, **SEEDED, logprobs=1, echo=True)
    fresh = Fresh(adapter)
    whole = fresh(asked)
    asked.prefix = whole.prefix(3)
    wanted = whole.answers()
    for begun in (0, 1):
        tokens = tuple(tuple(wanted[i].token_ids[:3]) if i == begun else () for i in range(2))
        asked.prefix = type(asked.prefix)(tokens)
        rest = fresh(asked).answers()
        assert rest[1 - begun].text == wanted[1 - begun].text
        assert rest[begun].token_ids == wanted[begun].token_ids[3:]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_anywhere(adapter: CausalLM, include: bool) -> None:
    """What was held back of the text is held back still, and its tokens' log-probabilities with it."""
    text = Fresh(adapter)(work(1, PROMPT, **RUN, **SEEDED)).answers()[0].text
    for length in (1, 3, 6):
        stop = [text[8 : 8 + length], "never said"]
        asked = work(1, PROMPT, **RUN, **SEEDED, stop=stop, include_stop_str_in_output=include, logprobs=1)
        check_every_cut(Fresh(adapter), asked)
    # Almost said, again and again: all but the last character is the text's own.
    almost = [text[i : i + 4] + "\x00" for i in range(len(text) - 4)]
    check_every_cut(Fresh(adapter), work(1, PROMPT, **RUN, **SEEDED, stop=almost, logprobs=2, routed=True))


def test_what_is_computed_for_it(adapter: CausalLM) -> None:
    """Prompt and reported tokens in one go, but for what the cache has of them."""
    engine = engine_of(adapter, block_size=4, kv_blocks=64)
    asked = work(1, PROMPT, **RUN)
    whole = attempt(engine, asked)
    before = engine.counters()
    rest = attempt(engine, Work(2, "again", asked.params, visible=True, prefix=whole.prefix(20)))
    after = engine.counters()
    assert after["resumed_tokens_total"] == 20
    assert after["steps_total"] - before["steps_total"] == 4 == len(rest.steps)
    assert after["computed_tokens_total"] - before["computed_tokens_total"] <= 4 + 3
    assert rest.usage is not None
    assert rest.usage.cached_tokens == rest.usage.prompt_tokens


def test_long_prefixes_are_computed_in_pieces_beside_others(adapter: CausalLM) -> None:
    fresh = Fresh(adapter, step_tokens=8, kv_blocks=128)
    asked = work(1, PROMPT, max_tokens=80, ignore_eos=True, stop=["~" * 9], logprobs=1)
    check_every_cut(fresh, asked, cuts=[1, 40, 79, 80])
    whole = fresh(asked)
    # Several in one engine whose cache is too small for all: they are preempted, and computed again.
    engine = engine_of(adapter, block_size=4, kv_blocks=25, step_tokens=8, max_batch=8, prefix_cache=False)
    works = [
        Work(key, f"r{key}", asked.params, visible=True, prefix=whole.prefix(cut))
        for key, cut in enumerate([2, 3, 4, 70, 75])
    ]
    out = run(engine, works)
    assert engine.counters()["preemptions_total"]
    for key, it in enumerate(works):
        assert it.prefix is not None
        said = [*it.prefix.tokens[0], *out.answers[key][0].token_ids]
        assert said == whole.answers()[0].token_ids
    assert_idle(engine)


def test_nothing_is_computed_for_what_was_over(adapter: CausalLM) -> None:
    asked = work(1, PROMPT, max_tokens=6, routed=True)
    whole, rests = check_every_cut(Fresh(adapter), asked)
    assert rests[-1].steps == []
    assert rests[-1].emitted == whole.emitted != ""
    engine = engine_of(adapter, block_size=4, kv_blocks=64)
    asked.prefix = whole.prefix(len(whole.steps))
    attempt(engine, asked)
    assert engine.counters()["computed_tokens_total"] == 0


def test_a_prompt_without_an_answer(adapter: CausalLM) -> None:
    check_every_cut(Fresh(adapter), work(1, PROMPT, max_tokens=0, echo=True, logprobs=1))
    check_every_cut(Fresh(adapter), work(1, PROMPT, max_tokens=0, echo=True, n=2))


def test_tokens_behind_the_end_fail_their_request_alone(adapter: CausalLM) -> None:
    engine = engine_of(adapter, block_size=4, kv_blocks=64)
    whole = Fresh(adapter)(work(1, PROMPT, max_tokens=6))
    asked = work(1, PROMPT, max_tokens=5)
    asked.prefix = whole.prefix(6)
    with pytest.raises(ValueError, match="behind its end"):
        engine.admit(asked)
    assert_idle(engine)
    twice = work(2, PROMPT, max_tokens=5, n=2)
    twice.prefix = whole.prefix(6)
    out = run(engine, [twice, work(3, PROMPT, max_tokens=5)])
    assert out.errors.keys() == {2}
    assert out.answers[3][0].token_ids == whole.answers()[0].token_ids[:5]
    assert_idle(engine)


@pytest.mark.parametrize("sampling", [{}, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("more", [{"stop": ["~!"], "logprobs": 2}, {"n": 3, "echo": True, "logprobs": 1}])
def test_in_two_halves(adapter: CausalLM, sampling: dict[str, Any], more: dict[str, Any]) -> None:
    asked = work(1, PROMPT, max_tokens=12, **sampling, **more)
    check_every_cut(Split(adapter), asked, cuts=[1, 2, 7, 11, 12])
    check_every_cut(Split(adapter, kv_blocks=12, max_batch=2), asked, cuts=[1, 6])
    assert Split(adapter)(asked).answers().keys() == Fresh(adapter)(asked).answers().keys()


def test_whatever_goes_on_beside_whatever_nothing_changes_and_nothing_stays(adapter: CausalLM) -> None:
    """Requests of all kinds, resumed anywhere and aborted anywhere, in a cache that is too small for them, with credits
    that come and go."""
    random = Random(5)
    kinds: list[dict[str, Any]] = [
        {},
        {"n": 2, **SEEDED},
        {"logprobs": 1, "stop": ["~" * 5, "never said"], **SEEDED},
        {"echo": True, "logprobs": 1, "repetition_penalty": 1.2},
        {"n": 3, "stop_token_ids": list(range(0, 256, 9)), **SEEDED},
    ]
    asked = [
        work(0, PROMPT * random.randint(1, 3), max_tokens=random.randint(1, 30), **kinds[i % 5], routed=i % 2 == 0)
        for i in range(20)
    ]
    told = [Fresh(adapter, kv_blocks=128)(it) for it in asked]
    engine, out = engine_of(adapter, block_size=4, kv_blocks=40, step_tokens=12, max_batch=6), Collector()
    waiting = [(i, random.randint(0, len(told[i].steps))) for i in range(20) for _ in range(3)]
    random.shuffle(waiting)
    live: dict[int, tuple[int, int]] = {}
    checked = key = 0
    for _ in range(MAX_STEPS):
        if not (waiting or live):
            break
        if waiting and len(live) < 8 and random.random() < 0.5:
            i, cut = waiting.pop()
            key += 1
            live[key] = i, cut
            prefix = told[i].prefix(cut) if cut else None
            engine.admit(replace(asked[i], key=key, prefix=prefix))
        if live and random.random() < 0.02:
            gone = random.choice(list(live))
            engine.abort(gone)
            del live[gone]
        out.blocked = {it for it in live if random.random() < 0.2}
        if engine.runnable:
            engine.step(out)
        for done in [it for it in live if it in out.usage]:
            i, cut = live.pop(done)
            before = told[i].answers(cut)
            for index, whole in told[i].answers().items():
                had, got = before.get(index, Answer()), out.answers[done][index]
                assert had.token_ids + got.token_ids == whole.token_ids
                assert had.text + got.text == whole.text
                assert (had.finish_reason or got.finish_reason) == whole.finish_reason
                assert len(had.logprobs) + len(got.logprobs) == len(whole.logprobs)
            if asked[i].routed:
                assert "".join(out.emitted[done]) == told[i].emitted
            checked += 1
        assert not out.errors
    assert not waiting
    assert not live
    assert checked > 40
    assert engine.counters()["preemptions_total"]
    assert_idle(engine)
