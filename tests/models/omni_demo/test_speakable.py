"""What of written text the demo's voice is given to say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.models.omni_demo.speakable import speakable


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("**Bold**, *it*, ~~gone~~ and `code`.", "Bold, it, gone and code."),
        ("__init__ and snake_case stay readable", "init and snake_case stay readable"),
        ("### A heading", "A heading"),
        ("> quoted", "quoted"),
        ("- an item", "an item"),
        ("- [x] done", "done"),
        ("2. Pears", "2, Pears"),
        ("2.5 pears", "2.5 pears"),
        ("See [the docs](https://a.b/c_(d)) now.", "See the docs now."),
        ("![a cat](cat.png)", "a cat"),
        ("It is known[1] well[^2].", "It is known well."),
        ("See https://www.example.com/a/b?c=1#d.", "See example dot com slash a slash b."),
        ("https://example.com/" + "x" * 50, "example dot com"),
        ("Ask bob.smith@example.co.uk!", "Ask bob dot smith at example dot co dot uk!"),
        ("Go to openai.com.", "Go to openai dot com."),
        ("<b>Hi</b><br/>there <!-- no -->", "Hi there"),
        ("Great! 🎉🎉 👍🏽 ❤️ 🇫🇷", "Great!"),
        ("1️⃣ first", "1 first"),
        ("| a | b |", "a, b"),
        ("2 + 2 = 4", "2 plus 2 = 4"),
        ("5 - 3, 7 x 8, -5, 6 / 3", "5 minus 3, 7 times 8, minus 5, 6 divided by 3"),
        ("x^2 and a >= b, A -> B", "x squared and a is at least b, A to B"),
        ("Tom & Jerry, e.g. cats, i.e. mice etc.", "Tom and Jerry, for example, cats, that is, mice et cetera"),
        ("C++ and C#", "C plus plus and C sharp"),
        ("90 km/h for 5 m, ~3 min", "90 kilometers per hour for 5 meters, about 3 min"),
        ("Wow!!! What?!?! Hm.....", "Wow! What? Hm…"),
        ("\uff28\uff45\uff4c\uff4c\uff4f\uff01", "Hello!"),
        ("a\u200bb\u00adc\x07d", "abcd"),
        ("two\nlines", "two lines"),
        ("**left open", "left open"),
        ("10⁶, m², 10⁻³ and ① ٣", "10 to the power of 6, m squared, 10 to the power of minus 3 and 1 3"),
        ("1234567890123 and 1,234,567,890,123", "1 2 3 4 5 6 7 8 9 0 1 2 3 and 1 2 3 4 5 6 7 8 9 0 1 2 3"),
        ("1,2,3 or Jan 5,2024", "1, 2, 3 or Jan 5, 2024"),
        ("1,234,567 or 12,34,567", "1,234,567 or 12,34,567"),
        ("1,000.50 and 1,000,00", "1,000 point five zero and 1, zero zero zero, zero zero"),
        ("$5.99 on 10/12/2019 at 9:30am, 20°C, 50%", "$5.99 on 10/12/2019 at 9:30am, 20°C, 50%"),
    ],
)
def test_markup_and_symbols_become_words(written: str, spoken: str) -> None:
    assert speakable(written) == spoken


@pytest.mark.parametrize("written", ["", "...", "😀", "---", "***", "|---|:-:|", "```", "?!", "—", "\u200b", "<br>"])
def test_what_has_no_words_is_empty(written: str) -> None:
    assert speakable(written) == ""


@given(st.text(max_size=300))
def test_any_text_gives_one_line_of_something_or_nothing(text: str) -> None:
    spoken = speakable(text)
    assert spoken == " ".join(spoken.split())
    assert not spoken or any(character.isalnum() for character in spoken)


def test_letters_that_are_left_out_leave_no_rows_of_spaces() -> None:
    """One of these is eighteen letters, each of which is left out."""
    assert speakable("a " + "\ufdfa" * 220 + " b") == "a b"
    began = time.thread_time()
    speakable("\ufdfa" * 2_000)
    assert time.thread_time() - began < 1.0
