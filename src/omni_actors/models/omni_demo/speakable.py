"""Text normalisation of a written sentence for speech: markup, pictures and addresses become words or are removed.

Numbers, dates, times, money, units and abbreviations are left to the voice's own normalisation.
"""

from __future__ import annotations

import re
import unicodedata

from omni_actors.models.omni_demo.alphabet import readable
from omni_actors.models.omni_demo.figures import figures

_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"<!--.*?-->|</?[A-Za-z][^<>]{0,200}>", " "),  # HTML
        (r"```[\w+-]*|~~~[\w+-]*", " "),  # the marks around a block of code
        (r"!?\[([^\]\[]*)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)", r"\1"),  # links and pictures: their text
        (r"(?<=\S)\[\^?\w{1,3}\]", ""),  # notes and citations
        (r"^\s{0,3}#{1,6}\s+", ""),  # heading
        (r"^(?:\s*>)+\s?", ""),  # quotation
        (r"^\s*[-*+•‣◦·–]\s+", ""),  # item
        (r"^\s*\[[ xX]\]\s+", ""),  # check box
        (r"^\s*\(?(\d{1,3})[.)]\s+(?!\d{3}\b)", r"\1, "),  # numbered item
        (r"\\[()\[\]]|\$\$", " "),  # marks around formulas
        (r"\\(?=[*_`#|~])", ""),  # escapes
        (r"(\*\*\*|\*\*|__|~~|`+)(?=\S)(.+?)(?<=\S)\1", r"\2"),  # strong, struck, code
        (r"(?<![\w*])([*_])(?=[^\s*_])(.+?)(?<=[^\s*_])\1(?![\w*])", r"\2"),  # emphasis
        (r"\*\*|__|~~|`+", ""),  # what is left of such marks when a sentence was cut between them
        (r"^\s*\|\s*|\s*\|\s*$", ""),  # a table's edges
        (r"\s*\|\s*", ", "),  # and cells
        (r"-{3,}|={3,}|_{3,}|\*{3,}|#{2,}", " "),  # rules
    )
)

_URL = re.compile(r"(?:https?|ftp)://(?:www\.)?([^\s/?#<>()\"]+)([^\s<>()\"]*)|\bwww\.([^\s/?#<>()\"]+)([^\s<>()\"]*)")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_DOMAIN = re.compile(
    r"\b(?:[A-Za-z0-9-]+\.)+(?:com|org|net|edu|gov|io|dev|ai|app|co\.uk|uk|de|fr|info)\b(?:/[\w./-]*)?"
)
_SPELLED = {
    ".": " dot ",
    "@": " at ",
    "/": " slash ",
    "-": " dash ",
    "_": " underscore ",
    "+": " plus ",
    ":": " colon ",
}

_POWER = re.compile(r"(?<=[\w)])⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LISTED = re.compile(r"\d+(?:,\d+)+")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}")
"""Digits in groups are one number (1,234,567, or 12,34,567 in India); others with commas between them are several."""
_LONG_NUMBER = re.compile(r"\d{1,3}(?:,\d{3}){4,}|\d{13,}")
"""From a trillion on, digits are easier to follow than names (and the voice knows no names beyond)."""

_SYMBOLS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b24/7\b", "twenty-four seven"),
        (r"\be\.g\.,?", "for example,"),
        (r"\bi\.e\.,?", "that is,"),
        (r"\betc\b\.?", "et cetera"),
        (r"\b([A-Za-z])\+\+", r"\1 plus plus"),
        (r"\b([CF])#", r"\1 sharp"),
        (r"(?<=\w)\^2\b", " squared"),
        (r"(?<=\w)\^3\b", " cubed"),
        (r"(?<=\w)\^(?=[\w({])", " to the power of "),
        (r"~\s?(?=[\d$£€])", "about "),
        (r"\band/or\b", "and or"),
        (r"(?<=\w)\s*&\s*(?=\w)", " and "),
        (r"(?<=[\w)])\s*(?:->|=>|→|⇒)\s*(?=[\w(])", " to "),
        (r"(?<=[\w)])\s*(?:>=|≥)\s*(?=[\w(-])", " is at least "),
        (r"(?<=[\w)])\s*(?:<=|≤)\s*(?=[\w(-])", " is at most "),
        (r"(?<=[\w)])\s*(?:!=|≠)\s*(?=[\w(-])", " is not "),
        (r"≈", " about "),
        (r"√", " the square root of "),
        (r"π", " pi "),
        (r"∞", " infinity "),
        (r"(?<=\d)\s*[xX×*]\s*(?=\d)", " times "),
        (r"(?<=[\w)])\s\+\s?(?=[\w(])|(?<=\d)\+(?=\d)", " plus "),
        (r"(?<=[\d)])\s[-−]\s(?=[\d(])", " minus "),
        (r"(?<![\w.])[-−](?=\d)", "minus "),
        (r"(?<=[\d)])\s[/÷]\s(?=[\d(])", " divided by "),
        (r"(\d) m(?=[\s.,;)]|$)", r"\1 meters"),
        (r"(\d)\s?km/h\b", r"\1 kilometers per hour"),
        (r"(\d)\s?m/s\b", r"\1 meters per second"),
        (r"(?<=\w)\s*/\s*(?=[A-Za-z])", " "),
        (r"([!?])[!?]{2,}", r"\1"),
        (r"\.{3,}", "…"),
        (r"[…]{2,}", "…"),
        (r"[{}\[\]\\^~|]", " "),
    )
)

_THIN_SPACES = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u2009\u202f]\d{3})+(?!\d)")
"""Thousands that are kept apart by spaces at which no line breaks."""

_SIGNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        *(
            (rf"(?<![^\W\d_])[\u00b5\u03bc]{unit}\b", f" {words}")
            for unit, words in (
                ("m", "micrometers"),
                ("g", "micrograms"),
                ("s", "microseconds"),
                ("[lL]", "microliters"),
            )
        ),
        (r"(?<=\d)\s?[\u03a9\u2126](?![^\W_])", " ohms"),
        (r"(?<![^\W\d_])π(?![^\W\d_])", " pi "),
        (r"(?<=\d)(?=[¼-¾⅐-⅞])", " and "),
        (r"([$£€])\s(?=\d)", r"\1"),
        (r"(?<!\w)[-−]\s?(?=[$£€]\d)", "minus "),
    )
)
"""Greek letters that are signs, and what must be told before characters are led back to plain ones."""


def speakable(sentence: str) -> str:
    """Return a sentence's words for the voice, on one line; empty if the sentence has nothing to say.

    All characters are in :data:`~omni_actors.models.omni_demo.alphabet.ALPHABET`.
    """
    text = " ".join(sentence.split("\n"))
    for pattern, replacement in _SIGNS:
        text = pattern.sub(replacement, text)
    text = _THIN_SPACES.sub(lambda match: re.sub(r"\s", ",", match[0]), _POWER.sub(_spell_power, text))
    text = " ".join(readable(text).split())  # the patterns below take long for the spaces that letters may leave
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = _URL.sub(_spell_url, text)
    text = _EMAIL.sub(lambda match: _spell(match[0]), text)
    text = _DOMAIN.sub(lambda match: _spell(match[0]), text)
    text = _LISTED.sub(lambda match: match[0] if _GROUPED.fullmatch(match[0]) else match[0].replace(",", ", "), text)
    text = _LONG_NUMBER.sub(lambda match: " ".join(match[0].replace(",", "")), text)
    text = figures(text)
    for pattern, replacement in _SYMBOLS:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split()).lstrip(",;:.!?)-–— ")
    return text if any(character.isalnum() for character in text) else ""


def _spell_power(match: re.Match[str]) -> str:
    exponent = "".join("-" if character == "⁻" else str(unicodedata.digit(character)) for character in match[0])
    return {"2": " squared", "3": " cubed"}.get(exponent, f" to the power of {exponent}")


def _spell_url(match: re.Match[str]) -> str:
    """The host, and a short path; a long one is of no use to a listener."""
    host, path = (match[1], match[2]) if match[1] else (match[3], match[4])
    stop = ""
    whole = host + path
    while whole and whole[-1] in ".,;:!?'":
        stop = whole[-1] + stop
        whole = whole[:-1]
    path = whole[len(host) :].split("?")[0].split("#")[0].rstrip("/")
    return _spell(host.rstrip(".,;:!?'") + (path if len(path) <= 24 else "")) + stop


def _spell(address: str) -> str:
    return " ".join("".join(_SPELLED.get(character, character) for character in address).split())
