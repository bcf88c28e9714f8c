"""Figures that are no plain numbers, entities, and characters that the voice cannot read."""

from __future__ import annotations

import random
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.omni_demo.harness import Voice
from tests.models.omni_demo.hearing import TEXTS, Ear, hears

from omni_actors.models.omni_demo.alphabet import ALPHABET
from omni_actors.models.omni_demo.sentences import SentenceSplitter
from omni_actors.models.omni_demo.speakable import speakable
from omni_actors.protocol.errors import OmniError


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        # Codes that begin with 0.
        ("Agent 007", "Agent zero zero seven"),
        ("0042", "zero zero four two"),
        ("img0042.", "img zero zero four two."),
        ("00000", "zero zero zero zero zero"),
        ("٠٠٧, ०४२", "zero zero seven, zero four two"),
        # Telephone numbers.
        ("555-0100", "five five five; zero one zero zero"),
        ("(555) 010-0042", "five five five; zero one zero; zero zero four two"),
        ("+44 20 7946 0958", "plus four four; two zero; seven nine four six; zero nine five eight"),
        ("0800 123 456", "zero eight zero zero; one two three; four five six"),
        ("+442079460958", "plus four four two zero seven nine four six zero nine five eight"),
        # Numbers that begin with 0, and times and dates that have one.
        ("0.5, 0, 0 degrees, 0%, -0.25", "0.5, 0, 0 degrees, 0%, minus 0.25"),
        (".05 and 007.5", "point zero five and zero zero seven point five"),
        ("001,234.5", "zero zero one two three four point five"),
        ("10:05, 09:30:00", "10:05, 09:30:00"),
        ("2007-01-05, 01/05/2007", "2007-01-05, 01/05/2007"),
        ("2007-01-05T09:30:00", "2007-01-05 09:30:00"),
        ("2007-01, 01/05", "January 2007, January 5"),
        ("Jan 05 and 05 March", "Jan 5 and 5 March"),
        ("the 05th", "the 5th"),
        ("$0.99, $0.5, -$5, €1,005.00", "$0.99, $0.50, minus $5, €1,005.00"),
        # Versions, addresses, chains.
        ("3.10, 2.50 km", "3 point one zero, 2.50 km"),
        ("v2.0.1", "v 2 dot 0 dot 1"),
        ("192.168.0.1", "one nine two dot one six eight dot 0 dot 1"),
        ("978-0-306-40615-7", "nine seven eight, 0, three zero six, four zero six one five, 7"),
        ("1-1-1-", "1, 1, 1"),
        ("0x1F", "zero x one F"),
        # Plain numbers and ranges.
        ("1,005, 1005, 10-20, 3-0, +5, 21st", "1,005, 1005, 10-20, 3-0, +5, 21st"),
        ("10 000 and 1\u202f234", "10,000 and 1,234"),
        ("It has 1,000. Or 2,345,007.", "It has 1,000. Or 2,345,007."),
        (
            "1,000,000.5, 1,000,000.50 and 1,00,000.50",
            "1,000,000.5, 1,000,000 point five zero and 1,00,000 point five zero",
        ),
        ("0,123.5", "zero one two three point five"),
        ("½ and 1½", "1/2 and 1 and 1/2"),
    ],
)
def test_figures_are_read_as_what_they_are(written: str, spoken: str) -> None:
    assert speakable(written) == spoken


@given(st.integers(1_000, 999_999_999_999), st.sampled_from([".", ",", "?", "!", ")", "...", " km.", "%.", " -", ""]))
def test_a_number_in_groups_stays_one_whatever_follows_it(number: int, mark: str) -> None:
    assert f"{number:,}" in speakable(f"It has {number:,}{mark}")


@given(st.text("0123456789.,:/-+()$ xe", max_size=40))
def test_no_row_of_figures_fails(text: str) -> None:
    assert set(speakable(text)) <= ALPHABET


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("&amp;amp; &#48;&#x30; &nosuchname; AT&T &c", "&amp; 00 &nosuchname; AT&T &c"),
        ("&lt;b&gt;Hi&lt;/b&gt;&nbsp;there", "<b>Hi</b>\u00a0there".replace("\u00a0", " ")),
    ],
)
def test_entities_are_decoded_once_however_they_arrive(written: str, spoken: str) -> None:
    for size in range(1, len(written)):
        splitter = SentenceSplitter()
        found = [it for i in range(0, len(written), size) for it in splitter.push(written[i : i + size])]
        assert " ".join(found + splitter.push("", end=True)) == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("café, naïve, Łódź, Straße, encyclopædia", "cafe, naive, Lodz, Strasse, encyclopaedia"),
        ("ﬁne 𝐁𝐨𝐥𝐝 Ｆｕｌｌ Ⓐ", "fine Bold Full A"),
        ("The answer Привет is 42", "The answer is 42"),
        ("使用Python编程", "Python"),
        ("5 µm, 10 Ω, 2π and π", "5 micrometers, 10 ohms, 2 pi and pi"),
        ("παπα καλά", ""),
        ("Acme™ №5", "Acme No. 5"),
        ("γειά გამარჯობა բարեւ Привет 你好 こんにちは 안녕 שלום مرحبا नमस्ते", ""),
    ],
)
def test_other_scripts_are_left_out_and_latin_is_made_plain(written: str, spoken: str) -> None:
    assert speakable(written) == spoken


CHARACTERS = [
    chr(code) for code in range(0x80, sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
]


def test_no_character_outside_of_the_alphabet_is_left() -> None:
    """Every assigned character of Unicode, a hundred at a time, each between letters."""
    assert len(CHARACTERS) > 140_000
    for start in range(0, len(CHARACTERS), 100):
        assert set(speakable("a".join(CHARACTERS[start : start + 100]))) <= ALPHABET


def test_letters_of_every_script_but_latin_are_nothing_to_say() -> None:
    def latin(character: str) -> bool:
        parts = unicodedata.normalize("NFKD", character)
        return any("LATIN" in unicodedata.name(part, "") or part.isdigit() or part.isascii() for part in parts)

    others = [it for it in CHARACTERS if unicodedata.category(it)[0] == "L" and not latin(it)]
    assert len(others) > 100_000
    for start in range(0, len(others), 50):
        assert speakable("".join(others[start : start + 50])) == ""
    assert len({unicodedata.name(it, "?").split()[0] for it in others}) > 150


@given(st.text(max_size=200))
def test_any_text_gives_characters_of_the_alphabet(text: str) -> None:
    assert set(speakable(text)) <= ALPHABET


@pytest.mark.parametrize("group", ["-111111", ".11111", " 1111", ".222222"])
@pytest.mark.parametrize("end", [",1", ".1", "1", "x"])
def test_no_row_of_groups_is_read_for_long(group: str, end: str) -> None:
    """Ways to part a row of digits grow exponentially with its length: none but one may be tried."""
    assert set(speakable("+44 20" + group * 29 + end)) <= ALPHABET


@pytest.mark.weights
@pytest.mark.parametrize("text", ["Привет, мир!", "γειά σου Κόσμε", "გამარჯობა", "բարեւ", "你好。", "&nbsp;&zwj;"])
def test_a_text_of_nothing_else_is_refused(voice: Voice, text: str) -> None:
    with pytest.raises(OmniError) as caught:
        voice.spectra(text=text)
    assert (caught.value.info.status, caught.value.info.param) == (400, "input")


@pytest.mark.weights
@pytest.mark.parametrize(("written", "spoken"), random.Random(4).sample(TEXTS, 4))
def test_numbers_are_heard_by_another_recogniser(voice: Voice, written: str, spoken: str) -> None:
    """A sample of those that pocketsphinx hears well; ``python -m tests.models.omni_demo.hearing`` says all of them."""
    right, heard = hears(voice, Ear(), written, spoken)
    assert right, heard
