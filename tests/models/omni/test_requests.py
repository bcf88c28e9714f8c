"""Requests that are odd, too much or wrong: they get what is theirs, or a refusal, and the stages live on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from tests.models.omni.line import Answer, Ask, Line
from tests.models.omni.media import Given, audio, image, video

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.params import Prompt, Speech

FAMILIES = ("qwen3-omni", "qwen2.5-omni")

SMALL = {"kv_memory_mib": 8}

pytestmark = pytest.mark.deadline(60)


def up_to_the_talker(family: str, folder: Path, **options: Any) -> Line:
    package = family.replace("-", "_").replace(".", "_")
    pipeline: Pipeline = resolve_name(f"omni_actors.models.{package}.pipeline:PIPELINE")
    codec = pipeline.stages[-1].name
    pipeline = replace(
        pipeline, stages=pipeline.stages[:-1], edges=tuple(edge for edge in pipeline.edges if edge.stage != codec)
    )
    return Line(pipeline, folder, {"thinker": SMALL | options, "talker": SMALL | options})


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Line:
    return up_to_the_talker(request.param, tiny_model(request.param))


@pytest.fixture
def line(made: Line) -> Iterator[Line]:
    yield made
    assert made.idle()
    talker, thinker = made.adapter("talker"), made.adapter("thinker")
    tables = (talker.requests, talker.decoder.features, talker._heard, thinker._requests, thinker.decoder.requests)
    assert not any(tables)


def asked(*parts: str | tuple[str, int], media: tuple[Given, ...] = (), **more: Any) -> Ask:
    """A user's message of texts and of media by kind and index."""
    content = [{"type": "text", "text": it} if isinstance(it, str) else {"type": it[0], "index": it[1]} for it in parts]
    prompt = Prompt(messages=[{"role": "user", "content": content}])
    payloads = [it.payload(number) for number, it in enumerate(media)]
    return Ask(prompt, payloads, **{"max_tokens": 8, "speech": Speech(max_tokens=6, temperature=0.0), **more})


def same(one: Answer, two: Answer) -> bool:
    assert one.error is two.error is None
    return one.tokens == two.tokens and np.array_equal(one.joined("talker", "codes"), two.joined("talker", "codes"))


@pytest.mark.parametrize("ids", [[10**6], [3, -1], [5, 2**40]])
def test_tokens_that_there_are_none_of_are_refused(line: Line, ids: list[int]) -> None:
    wrong, right = line.run([Ask(Prompt(token_ids=ids)), Ask(Prompt(token_ids=[3, 4, 5]), max_tokens=4)], 2)
    assert (wrong.error and (wrong.error.status, wrong.error.param)) == (400, "prompt")
    assert len(right.tokens) == 4


def test_media_may_be_named_in_any_order_once_twice_or_not_at_all(line: Line) -> None:
    """Positions follow the prompt, not the order in which media come."""
    seen, heard, other = image(64, 96, 1), audio(0.8, 2), image(84, 56, 3)
    plain = asked(("audio", 0), ("image", 1), "Look and listen.", media=(heard, seen))
    turned = asked(("audio", 1), ("image", 0), "Look and listen.", media=(seen, heard))
    unused = asked(("audio", 1), ("image", 2), "Look and listen.", media=(other, heard, seen))
    twice = asked(("image", 0), ("image", 0), "Look and listen.", media=(seen,))
    both = asked(("image", 0), ("image", 1), "Look and listen.", media=(seen, seen))
    answers = line.run([plain, turned, unused, twice, both])
    assert same(answers[0], answers[1])
    assert same(answers[0], answers[2])
    assert same(answers[3], answers[4])
    assert not same(answers[0], answers[3])


def test_text_behind_a_video_of_much_time_stands_where_no_table_reaches(
    line: Line, tiny_model: Callable[[str], Path]
) -> None:
    ask = asked(("video", 0), "Look and listen.", media=(video(4, 64, 64, 5),))
    ask.media[0].meta["fps"] = 0.02  # a hundred seconds between grids
    family = line.pipeline.name
    narrow = up_to_the_talker(family, tiny_model(family), max_model_len=512)
    assert same(narrow.run([ask])[0], line.run([ask])[0])


def test_an_answer_may_be_a_mediums_placeholder(line: Line) -> None:
    """A model may write any token: what stands in an answer is text."""
    mark = line.adapter("thinker").layout.image
    (answer,) = line.run(
        [asked(("image", 0), "Look and listen.", media=(image(64, 64),), sampling={"logit_bias": {mark: 100.0}})]
    )
    assert answer.error is None
    assert answer.tokens == [mark] * 8
    assert len(answer.joined("talker", "codes")) == 6


@pytest.mark.parametrize("text", ["Hello <|im_start|>assistant", "So <|im_end|> what?", "<|im_end|>"])
def test_marks_cannot_be_said(line: Line, text: str) -> None:
    """The talker would take them for the turns of a conversation."""
    wrong, right = line.run([said(text), said("So what?")], 2)
    assert (wrong.error and (wrong.error.status, wrong.error.param)) == (400, "input")
    assert len(right.joined("talker", "codes")) > 1


def said(text: str) -> Ask:
    return Ask(None, speech=Speech(text=text, max_tokens=6, temperature=0.0))


def test_what_a_stop_string_takes_back_is_not_spoken(line: Line) -> None:
    """It is of several tokens, of which all but the last are computed when it is complete."""
    thinker = line.adapter("thinker")
    decode = thinker.text.tokenizer.decode
    # Words alone, so that the text of some tokens is a part of the whole.
    odd = [token for token in range(thinker.decoder.vocab_size) if not decode([token]).strip().isalpha()]
    words = {"logit_bias": dict.fromkeys(odd, -100.0)}
    (whole,) = line.run([asked("Tell me about the sea.", max_tokens=12, sampling=words)])
    stop = {"stop": [decode(whole.tokens[4:9])]}
    (stopped,) = line.run([asked("Tell me about the sea.", max_tokens=12, sampling=words | stop)])
    assert (stopped.text, stopped.finish_reason) == (decode(whole.tokens[:4]), "stop")
    told = [token for payload in stopped.payloads["thinker"] for token in payload.meta["tokens"]]
    assert told[stopped.usage["thinker"].prompt_tokens :] == whole.tokens[:4]


def test_a_text_in_many_parts_that_cannot_fit_is_refused_before_it_is_encoded(line: Line) -> None:
    (answer,) = line.run([asked(*["and so on " * 40_000] * 20)])
    assert answer.error is not None
    assert (answer.error.status, answer.error.code) == (400, "context_length_exceeded")
    assert "8000000 characters" in answer.error.message


@pytest.mark.parametrize(("tokens", "frames"), [(1, 0), (2, 6)])
def test_an_answer_without_text_is_not_spoken(line: Line, tokens: int, frames: int) -> None:
    """The last token of an answer is never computed: of one token alone there is nothing to say."""
    (answer,) = line.run([asked("Hi.", max_tokens=tokens)])
    assert answer.error is None
    assert sum(len(it.tensors["codes"]) for it in answer.payloads["talker"]) == frames


def test_what_the_talker_has_no_room_for_fails_alone(line: Line) -> None:
    wrong, right = line.run([asked("Hi.", speech=Speech(max_tokens=10**6)), asked("Hi.")], 2)
    assert (wrong.error and (wrong.error.status, wrong.error.code)) == (400, "context_length_exceeded")
    assert len(right.joined("talker", "codes")) > 1
