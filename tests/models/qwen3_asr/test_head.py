"""What Qwen3-ASR says before the transcript is taken out of the text, however it is cut into pieces."""

from __future__ import annotations

import pytest

from omni_actors.models.qwen3_asr.listener import Head


def pushed(head: Head, pieces: list[str], reason: str = "stop") -> tuple[str, list[str]]:
    text, languages = "", []
    for place, piece in enumerate(pieces):
        shown, language = head.push(piece, reason if place == len(pieces) - 1 else None)
        text += shown
        languages += [] if language is None else [language]
    return text, languages


@pytest.mark.parametrize(
    ("answer", "text", "languages"),
    [
        ("language English<asr_text>Hello there.", "Hello there.", ["en"]),
        ("language None<asr_text>", "", []),
        ("language Klingon<asr_text>nuqneH", "nuqneH", []),
        ("Hello there.", "Hello there.", []),
        ("language is what we speak, and more than sixty-four characters of it.", None, []),
        ("lang", "lang", []),
        ("", "", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_head_is_taken_off(answer: str, text: str | None, languages: list[str], size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)] or [""]
    assert pushed(Head(None), pieces) == (answer if text is None else text, languages)


def test_text_that_is_no_head_is_not_held_back() -> None:
    head = Head(None)
    assert head.push("Hel", None) == ("Hel", None)
    assert head.push("language English<asr_text>", None) == ("language English<asr_text>", None)


@pytest.mark.parametrize(
    ("answer", "text", "languages"),
    [
        ("language Engl", "", []),
        ("language English<asr_text>", "", ["en"]),
        ("language English<asr_text>Hel", "Hel", ["en"]),
        ("Hel", "Hel", []),
    ],
)
def test_a_head_that_a_limit_has_cut_is_no_transcript(answer: str, text: str, languages: list[str]) -> None:
    for pieces in ([answer], list(answer)):
        assert pushed(Head(None), pieces, "length")[0] == text
    assert pushed(Head(None), list(answer), "length") == (text, languages)


def test_an_asked_language_is_told_once_and_nothing_is_taken_off() -> None:
    assert pushed(Head("de"), ["language English", "<asr_text>a"]) == ("language English<asr_text>a", ["de"])
