"""The wording of the prompts that the digits model is trained with."""

from __future__ import annotations

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

TEMPLATES = (
    "the digit {word}",
    "a handwritten {word}",
    "number {figure}",
    "draw {a_word}",
    "please write the number {figure}",
    "an image of the numeral {figure}",
    "{word}",
    "{figure}",
    "{a_word}",
    "{A_word}.",
    "the number {word}",
    "Digit {figure}.",
    "a handwritten digit {figure}",
    "write {a_word}",
    "Draw the digit {figure}!",
    "make an image of {a_word}",
    "I want to see {a_word}",
    "show me the number {word}, please",
    "Can you draw the numeral {word}?",
    "a drawing of the number {figure} in white on black",
    "Hello! Please draw the number {word} for me.",
    "Write down the figure {figure} by hand, thank you.",
    "My favourite number is {word}. Draw it.",
    "{a_word} as a child would write it",
    "{word}, please",
    "{figure} as an image",
)
"""Sentences with the digit as a word (``{word}``, ``{a_word}`` with its article) or as a ``{figure}``."""


def prompt(template: str, digit: int) -> str:
    """Return the prompt of a template for a digit.

    >>> prompt("draw {a_word}", 8), prompt("number {figure}", 3)
    ('draw an eight', 'number 3')
    """
    word = WORDS[digit]
    a_word = f"an {word}" if word == "eight" else f"a {word}"
    return template.format(word=word, figure=digit, a_word=a_word, A_word=a_word.capitalize())
