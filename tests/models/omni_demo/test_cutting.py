"""Where runs without spaces and long sentences are cut before they are said."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.models.omni_demo.cutting import MAX_LETTERS, MAX_TOKENS, cut, taken_apart


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("The well-known state-of-the-art 2007-01-05 isn't", "The well-known state-of-the-art 2007-01-05 isn't"),
        ("a-b-c-d-e-f-g", "a-b-c-d- e-f-g"),
        ("a1b2c3d4e5f6", "a1b2c3d4 e5f6"),
        ("one,two;three/four-five", "one,two;three/four- five"),
        ("x" * 50, f"{'x' * 24} {'x' * 24} xx"),
        ("antidisestablishmentarianism", "antidisestablishmentarianism"),
        ("$1,234.56", "$1,234.56"),
    ],
)
def test_runs_are_parted_at_marks(text: str, apart: str) -> None:
    assert taken_apart(text, lambda word: word.startswith("anti")) == apart


@given(st.text(st.sampled_from("aBé1 9-/_.,;:@$%'()"), max_size=300))
def test_nothing_is_lost_and_no_run_is_long(text: str) -> None:
    apart = taken_apart(text)
    assert "".join(apart.split()) == "".join(text.split())
    for run in apart.split():
        assert len(re.findall(r"[A-Za-z]+", run)) <= MAX_TOKENS
        assert all(len(word) <= MAX_LETTERS for word in re.findall(r"[A-Za-zé]+", run))


def test_phonemes_are_cut_at_pauses_then_between_words_then_anywhere() -> None:
    assert cut("a bc, def ghi", 20) == ["a bc, def ghi"]
    assert cut("aaaa aa, aaaa aaaa aaaa", 15) == ["aaaa aa,", "aaaa aaaa aaaa"]
    assert cut("aaaa aaaa aaaa aaaa", 10) == ["aaaa aaaa", "aaaa aaaa"]
    assert cut("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]


@given(st.text(st.sampled_from("abˈ ,.;—"), max_size=600), st.integers(10, 150))
def test_parts_of_phonemes_are_bounded_and_whole(phonemes: str, limit: int) -> None:
    phonemes = " ".join(phonemes.split())
    parts = cut(phonemes, limit)
    assert all(len(part) <= limit for part in parts)
    assert "".join("".join(parts).split()) == "".join(phonemes.split())
