"""Cutting English text into sentences while the text is still being written.

The cuts depend on the text alone, never on the pieces in which the text arrives. A sentence leaves as soon as its end
is certain, after one look at the next word.
"""

from __future__ import annotations

import re

from omni_actors.models.omni_demo.entities import Entities

LIMIT = 220
"""Characters. What has no sentence end by then is cut at its last clause, else at a space."""

OPENING_LIMIT = 80
"""Characters after which the first sentence of an answer may be cut at a clause, so that speech begins early."""

OPENING_MINIMUM = 24
"""Characters that such an early piece has at least: shorter ones sound clipped."""

_CLOSERS = "\"'”’»)\\]*_`"
_CANDIDATE = re.compile(rf"[.!?…]+[{_CLOSERS}]*(?=\s)|[。！？]+[」』”’）]*|\n+")
_CLAUSE = re.compile(r"[,;:](?=\s)|(?<=\s)[—–-](?=\s)|—|[)\]](?=\s)")
_LIST_MARKER = re.compile(r"[(\[*_#>\s-]*(?:\d{1,3}|[A-Za-z])")
_ACRONYM = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]|Ph\.D")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SPACE_RUN = re.compile(r"[\s\ufeff]+")
_FENCE = "```"


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_TITLES = _words(
    "mr mrs ms dr prof st gen sen rep gov capt lt col sgt maj cmdr rev hon pres mt ft messrs mme mlle "
    "e.g i.e eg ie vs cf viz approx"
)
"""With a full stop, never the end of a sentence."""

_BEFORE_NUMBER = _words("no nos fig figs vol pp p ch sec art eq jan feb mar apr jun jul aug sep sept oct nov dec")
"""With a full stop, not the end of a sentence when a number follows."""

_EITHER = _words("inc ltd co corp bros jr sr dept univ al est ave blvd rd")
"""With a full stop, the end of a sentence only if a word follows that often begins one (as for acronyms, initials)."""

_STARTERS = _words(
    "a after all also an and another any are as at because before both but by can could did do does during each even "
    "every few finally first for from had has have he her here his how however i i'm i've i'd i'll if in instead is it "
    "it's its last let let's many maybe meanwhile more most my new next no not now of on once one only or other our "
    "perhaps please she she's since so some soon still such that that's the their then there there's these they "
    "they're this those though to today together too until was we we're we've were what what's when where which while "
    "who why will with would yes yet you you're your"
)


class SentenceSplitter:
    """A splitter that takes pieces of text and returns sentences.

    ``opening_limit`` lets the first sentence be cut early at a clause (``None``: the first sentence is cut like
    others). ``skip_code`` leaves out text between lines of three backticks. HTML entities are decoded, once. Sentences
    have no surrounding space and are at most ``limit`` characters long.
    """

    def __init__(
        self, *, limit: int = LIMIT, opening_limit: int | None = OPENING_LIMIT, skip_code: bool = True
    ) -> None:
        self._limit = limit
        self._opening_limit = opening_limit
        self._skip_code = skip_code
        self._text = ""
        self._entities = Entities()

    def push(self, text: str, end: bool = False) -> list[str]:
        """Take more text and return the sentences that are certain now; with ``end``, all remaining text."""
        self._text = _SPACE_RUN.sub(_one_space, self._text + self._entities.push(text, end)).lstrip()
        sentences: list[str] = []
        while self._text:
            if self._skip_code and self._text.startswith(_FENCE[: len(self._text)]):
                if not self._leave_code(end):
                    break
                continue
            cut = self._cut(end)
            if cut is None:
                break
            sentence = self._text[:cut].strip()
            self._text = self._text[cut:].lstrip()
            if sentence:
                sentences.append(sentence)
                self._opening_limit = None
        return sentences

    def _leave_code(self, end: bool) -> bool:
        """Drop a fenced block from the front. Returns whether the block's end has come (or the text is no block)."""
        close = self._text.find(_FENCE, len(_FENCE))
        if close >= 0:
            self._text = self._text[close + len(_FENCE) :].lstrip()
            return True
        if end:
            self._text = ""
            return True
        if len(self._text) > 2 * len(_FENCE):
            self._text = _FENCE + self._text[1 - len(_FENCE) :]
        return False

    def _cut(self, end: bool) -> int | None:
        """Where the first sentence of the buffer ends; ``None`` while that is not certain."""
        text = self._text
        # No further than the limit and the character behind it: in a long run of marks each place is tried to its end.
        for match in _CANDIDATE.finditer(text, 0, self._limit + 1):
            if match.end() > self._limit:
                break
            if self._opening_limit is not None and match.end() > self._opening_limit:
                early = self._clause(self._opening_limit, OPENING_MINIMUM)
                if early is not None:
                    return early
            following = match.end()
            while following < len(text) and text[following].isspace():
                following += 1
            if following == len(text) and not end:
                return None
            verdict = _ends(text, match, following, end)
            if verdict is None:
                return None
            if verdict:
                return match.end()
        if self._opening_limit is not None and len(text) > self._opening_limit:
            early = self._clause(self._opening_limit, OPENING_MINIMUM)
            if early is not None:
                return early
        if len(text) > self._limit:
            return self._clause(self._limit, self._limit // 4) or text.rfind(" ", 1, self._limit) + 1 or self._limit
        return len(text) if end else None

    def _clause(self, limit: int, minimum: int) -> int | None:
        """The end of the last clause that ends within ``limit`` and leaves at least ``minimum`` characters."""
        ends = [m.end() for m in _CLAUSE.finditer(self._text, 0, limit + 1) if minimum <= m.end() <= limit]
        return ends[-1] if ends else None


def _one_space(run: re.Match[str]) -> str:
    """The shape of white space that matters: a space, a line's end, or a paragraph's end."""
    return "\n" * min(run[0].count("\n"), 2) or " "


def _ends(text: str, match: re.Match[str], following: int, final: bool) -> bool | None:
    """Whether a sentence ends at ``match``; ``None`` if more of the text must be seen to say."""
    mark = match[0]
    if following == len(text):
        return True
    follower = text[following]
    if mark[0] == "\n":
        # A line that goes on in lower case was wrapped; what starts anew (item, heading, paragraph) is a sentence.
        return len(mark) > 1 or not follower.islower()
    if mark[0] in "。！？":
        return True
    if not mark.strip("!?"):
        return True  # without a closing quote behind it: '"Really?" he asked.' goes on
    if follower.islower():
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    before = text[: match.start()]
    if _LIST_MARKER.fullmatch(before):
        return False
    word = before.split()[-1].lstrip("(\"“'‘[*_") if before.split() else ""
    lower = word.lower()
    if lower in _TITLES:
        return False
    if lower in _BEFORE_NUMBER:
        return not follower.isdigit()
    initial = len(word) == 1 and word.isupper() and word != "I"
    if initial or lower in _EITHER or _ACRONYM.fullmatch(word):
        return _starts_sentence(text, following, final)
    return True


def _starts_sentence(text: str, start: int, final: bool) -> bool | None:
    match = _WORD.match(text, start)
    if match is None:
        return not text[start].isalnum()
    if match.end() >= len(text) - 1 and not final:
        return None  # the word may go on (an apostrophe and a letter too)
    return match[0].lower().replace("’", "'") in _STARTERS
