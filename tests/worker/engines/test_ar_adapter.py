"""What an adapter may say about an answer: how long it is at most, and what of it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec.structs
import pytest
from tests.worker.engines import tiny_models
from tests.worker.engines.ar_driver import assert_idle, engine_of, hello, run, work

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.models.causal_lm.prompts import _Waiting
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import Prompt
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import PromptInput, Release

PROMPT = list(range(32, 64))

BAD = 1


class Breaking(CausalLM):
    """Raises ``error`` in the method ``breaks`` when it is called for request :data:`BAD`."""

    breaks = ""
    error: Exception = ValueError("of this request alone")

    def _check(self, method: str, key: int) -> None:
        if (method, key) == (self.breaks, BAD):
            raise self.error

    def open(self, work: Work) -> PromptInput:
        self._prompts._waiting[work.key] = _Waiting(Prompt())
        self._check("open", work.key)
        return super().open(work)

    def ready(self, key: int) -> bool:
        self._check("ready", key)
        return super().ready(key)

    def output(self, release: Release) -> Payload | None:
        self._check("output", release.key)
        return super().output(release)

    def shown(self, delta: TextDelta) -> TextDelta:
        self._check("shown", delta.key)
        return super().shown(delta)


class Bounded(CausalLM):
    """At most ``most`` tokens, of which only letters are shown."""

    most: int | None = None

    def open(self, work: Work) -> PromptInput:
        return replace(super().open(work), max_tokens=self.most)

    def shown(self, delta: TextDelta) -> TextDelta:
        letters = "".join(filter(str.isalpha, delta.text))
        return msgspec.structs.replace(delta, text=letters, meta={"of": len(delta.text)})


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Bounded:
    made = Bounded(hello(tiny_models.save(tmp_path_factory.mktemp("llama"))))
    made.load(lambda text, fraction: None)
    return made


@pytest.fixture
def adapter(loaded: Bounded) -> Iterator[Bounded]:
    yield loaded
    loaded.most = None


@pytest.mark.parametrize(
    ("asked", "own", "length"), [(None, 7, 7), (20, 7, 7), (5, 7, 5), (9, None, 9)], ids=["own", "less", "more", "none"]
)
def test_the_smaller_bound_counts(adapter: Bounded, asked: int | None, own: int | None, length: int) -> None:
    adapter.most = own
    engine = engine_of(adapter)
    answer = run(engine, [work(0, PROMPT, max_tokens=asked, ignore_eos=True)]).answers[0][0]
    assert len(answer.token_ids) == length
    assert answer.finish_reason == "length"
    assert_idle(engine)


def test_a_bound_that_the_context_has_no_room_for_is_refused(adapter: Bounded) -> None:
    adapter.most = tiny_models.CONTEXT
    engine = engine_of(adapter)
    with pytest.raises(OmniError) as refused:
        engine.admit(work(0, PROMPT))
    assert refused.value.info.code == "context_length_exceeded"
    assert_idle(engine)


def test_the_client_sees_what_is_shown_of_the_text_and_all_of_the_tokens(adapter: Bounded) -> None:
    whole = run(engine_of(adapter), [work(0, PROMPT, max_tokens=24, ignore_eos=True)])
    text, tokens = whole.answers[0][0].text, whole.answers[0][0].token_ids
    assert text.isalpha()
    assert len(tokens) == 24
    full = adapter.vocabulary.tokenizer.decode(tokens, skip_special_tokens=True)  # type: ignore[union-attr]
    assert text == "".join(filter(str.isalpha, full))
    assert text != full


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Breaking:
    made = Breaking(hello(tiny_models.save(tmp_path_factory.mktemp("breaking"))))
    made.load(lambda text, fraction: None)
    return made


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("a bug"), 500), (invalid_request("too odd"), 400)], ids=["bug", "refusal"]
)
@pytest.mark.parametrize("method", ["ready", "output", "shown"])
def test_what_is_raised_for_one_request_fails_it_alone(
    breaking: Breaking, method: str, error: Exception, status: int
) -> None:
    works = [work(key, PROMPT[key:], max_tokens=12, ignore_eos=True, routed=True, n=2) for key in range(3)]
    breaking.breaks = ""
    alone = run(engine_of(breaking), works)
    breaking.breaks, breaking.error = method, error
    engine = engine_of(breaking)
    found = run(engine, works)
    assert [(key, info.status) for key, info in found.errors.items()] == [(BAD, status)]
    for key in {0, 2}:
        assert [found.answers[key][i].text for i in (0, 1)] == [alone.answers[key][i].text for i in (0, 1)]
    assert engine.counters()["failures_total"] == 1
    assert_idle(engine)


def test_a_request_that_is_refused_when_it_opens_leaves_nothing_behind(breaking: Breaking) -> None:
    breaking.breaks, breaking.error = "open", invalid_request("too odd")
    engine = engine_of(breaking)
    with pytest.raises(OmniError):
        engine.admit(work(BAD, PROMPT))
    assert not breaking._prompts._waiting
    breaking.breaks = ""
    with pytest.raises(OmniError):
        engine.admit(work(0, PROMPT, max_tokens=tiny_models.CONTEXT))
    assert not breaking._prompts._waiting
    assert_idle(engine)
