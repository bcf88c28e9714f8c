"""Where the demo cuts text into sentences, and that it does not matter how the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.connectors.payload import text_payload
from omni_actors.models.omni_demo.bridges import Sentences
from omni_actors.models.omni_demo.sentences import LIMIT, OPENING_LIMIT, SentenceSplitter


def split(text: str) -> list[str]:
    return SentenceSplitter().push(text, end=True)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there. How are you? Fine!", ["Hello there.", "How are you?", "Fine!"]),
        ("It was 3.14 m. Version 2.0.1 is out.", ["It was 3.14 m.", "Version 2.0.1 is out."]),
        ("Dr. Smith met Mr. Jones. They left.", ["Dr. Smith met Mr. Jones.", "They left."]),
        ("We met at 5 p.m. The rain fell.", ["We met at 5 p.m.", "The rain fell."]),
        ("The U.S. Army came. He left the U.S. The end.", ["The U.S. Army came.", "He left the U.S.", "The end."]),
        ("J. K. Rowling wrote it. Then plan B. We go.", ["J. K. Rowling wrote it.", "Then plan B.", "We go."]),
        ("So do I. Then we go.", ["So do I.", "Then we go."]),
        ("Use fruit, e.g. Conference pears, i.e. Good ones.", ["Use fruit, e.g. Conference pears, i.e. Good ones."]),
        ("See Fig. 3. No. 5 is alive. I say no. Then go.", ["See Fig. 3.", "No. 5 is alive.", "I say no.", "Then go."]),
        ("Well... I think so… maybe. Wait … what?", ["Well...", "I think so… maybe.", "Wait … what?"]),
        ('"Really?" he asked. "Yes!" She left.', ['"Really?" he asked.', '"Yes!"', "She left."]),
        ("She said (quietly.) Then left.", ["She said (quietly.)", "Then left."]),
        ("really? yes! ok. fine", ["really?", "yes!", "ok. fine"]),
        ("Two things:\n1. Apples are red.\n- a last one", ["Two things:", "1. Apples are red.", "- a last one"]),
        ("A line that\nwas wrapped.\nNew line", ["A line that\nwas wrapped.", "New line"]),
        ("Heading\n\nand a paragraph.", ["Heading", "and a paragraph."]),
        ("**Bold.** Next.", ["**Bold.**", "Next."]),
        ("你好。世界！ok", ["你好。", "世界！", "ok"]),
        ("Run:\n```python\nprint('x. Y')\n\n# Z. W\n```\nDone.", ["Run:", "Done."]),
        ("Run:\n```\nnever closed. But", ["Run:"]),
        ("  \n ", []),
        ("", []),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    assert split(text) == sentences


def test_a_sentence_leaves_with_the_first_look_at_what_follows() -> None:
    splitter = SentenceSplitter()
    assert splitter.push("The capital is Paris.") == []
    assert splitter.push(" It") == ["The capital is Paris."]
    assert splitter.push(" is large. ") == []  # as far as one can see, a small letter may follow
    assert splitter.push("", end=True) == ["It is large."]


def test_a_paragraph_that_nothing_follows_waits_for_the_end_only() -> None:
    splitter = SentenceSplitter()
    assert splitter.push("One.\n\n") == []
    assert splitter.push("Two.") == ["One."]
    assert splitter.push("", end=True) == ["Two."]


def test_the_opening_may_leave_at_a_clause_and_later_ones_only_when_too_long() -> None:
    clause = "the sun goes up over the hills and the wide sea beyond them,"
    text = f"In the morning {clause} and " + " ".join([clause] * 6)
    opening, *others = split(text)
    assert opening.endswith(",")
    assert len(opening) <= OPENING_LIMIT
    assert all(OPENING_LIMIT < len(part) <= LIMIT and part.endswith(",") for part in others[:-1])
    assert " ".join([opening, *others]) == text


def test_what_has_no_clause_is_cut_between_words_and_a_giant_word_anywhere() -> None:
    words = "word " * 200
    assert all(len(part) <= LIMIT and part.endswith("word") for part in split(words))
    assert split("x" * 500) == ["x" * LIMIT, "x" * LIMIT, "x" * (500 - 2 * LIMIT)]


def test_code_is_read_when_it_was_sent_to_be_read() -> None:
    splitter = SentenceSplitter(skip_code=False)
    assert splitter.push("```\nHello there. Bye.\n```", end=True) == ["```", "Hello there.", "Bye.", "```"]


RUNS = [".", ".'", ".)", "!?", "…", "。", "。」", "\n", " ", ",", "— ", ")", "(", "`", "A. ", "1.", "a"]


@pytest.mark.deadline(10)
@pytest.mark.parametrize("piece", RUNS)
def test_a_long_run_of_anything_is_cut_in_no_time(piece: str) -> None:
    """Text of a request is cut in the worker's loop, between everybody else's sentences."""
    text = piece * (16_384 // len(piece))
    parts = SentenceSplitter(opening_limit=None, skip_code=False).push(text, end=True)
    assert "".join("".join(parts).split()) == "".join(text.split())


PIECES = st.sampled_from(
    [*"abiIZ 59.,;:!?…\n\"')(*-—`。", "Mr", "e.g", "U.S", "p.m", "The ", "the ", "```", "\n\n", "1. ", " and so on, "]
)


@given(st.lists(PIECES, max_size=400), st.data())
def test_the_cuts_depend_on_the_text_alone(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    whole = split(text)
    bridge = Sentences()
    sentences: list[str] = []
    start = 0
    while start < len(text):
        size = data.draw(st.integers(1, 40))
        fed = bridge.feed(text_payload(text[start : start + size]), False)
        sentences += [payload.meta["text"] for payload in fed]
        start += size
    sentences += [payload.meta["text"] for payload in bridge.feed(None, True)]
    assert sentences == whole


@given(st.text(st.sampled_from("ab. ,\n!?'\"IZ9`"), max_size=1500))
def test_nothing_is_lost_doubled_or_too_long(text: str) -> None:
    parts = SentenceSplitter(skip_code=False).push(text, end=True)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part and part == part.strip() and len(part) <= LIMIT for part in parts)
