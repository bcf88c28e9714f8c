"""Bounds on the cost of one step of the acoustic stage for any text; no characters are lost.

Characters say little about cost. Reading a run of 200 characters without a space takes the voice a hundred times as
long as a sentence of 200 (its search over the run's tokens grows with their cube), and ``999`` is six times as many
phonemes as ``cat``. Runs are therefore split before reading, and phonemes are cut after reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

MAX_TOKENS = 8
"""Most tokens in a run without a space."""

MAX_LETTERS = 24
"""Longest word that is read as one; the voice's net for unknown words stops reading there."""

_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*|([^\w]|_)\1*")
_CASE = re.compile(r"(?<=[a-zß-öø-ÿ])(?=[A-ZÀ-ÖØ-Þ])")
MARKS = '.!?…;:,—"”)'
"""Phonemes behind which the voice pauses."""

_PAUSE = re.compile(rf"[{MARKS}]+(?= )")


def taken_apart(text: str, known: Callable[[str], bool] = lambda word: False) -> str:
    """``text`` with more spaces: in every run of more than :data:`MAX_TOKENS` tokens, and in every word of more than
    :data:`MAX_LETTERS` letters that is not ``known``. A run is parted behind a mark if there is one (a hyphen, a
    slash), else between words and figures."""
    return " ".join(part for run in text.split() for part in _apart(run, known))


def _apart(run: str, known: Callable[[str], bool]) -> Iterator[str]:
    if len(run) <= MAX_TOKENS:
        yield run
        return
    group: list[str] = []
    for match in _TOKEN.finditer(run):
        for token in _CASE.split(match[0]):
            while len(token) > MAX_LETTERS and token[0].isalpha() and not known(token):
                yield from _joined([*group, token[:MAX_LETTERS]])
                group, token = [], token[MAX_LETTERS:]
            if len(group) == MAX_TOKENS:
                marks = [i for i, it in enumerate(group) if i and not it[0].isalnum()]
                end = marks[-1] + 1 if marks else len(group)
                yield from _joined(group[:end])
                group = group[end:]
            group.append(token)
    yield from _joined(group)


def _joined(tokens: list[str]) -> Iterator[str]:
    if tokens:
        yield "".join(tokens)


def cut(phonemes: str, limit: int) -> list[str]:
    """Phonemes in parts of at most ``limit``. What is longer is cut behind a mark where the voice pauses, near half of
    the limit, since a cut there is not heard; else between words into parts about equally long, else anywhere."""
    parts: list[str] = []
    while len(phonemes) > limit:
        wanted, least = len(phonemes) // -(-len(phonemes) // limit), limit // 3
        pauses = [it.end() for it in _PAUSE.finditer(phonemes, least, limit + 1) if it.end() <= limit]
        spaces = [place for place in range(least, limit + 1) if phonemes[place] == " "]
        if pauses:
            place = min(pauses, key=lambda it: abs(it - limit // 2))
        else:
            place = min(spaces or [limit], key=lambda it: abs(it - wanted))
        parts.append(phonemes[:place].strip())
        phonemes = phonemes[place:].strip()
    return [*parts, phonemes]
