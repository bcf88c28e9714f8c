"""The characters that the demo's voice can read, and the mapping of other characters to readable ones.

Letters of the Latin script lose their accents, ligatures and styles of letters become plain letters, and digits of any
script become ``0`` to ``9``. Letters of every other script are left out: the voice would speak noise instead.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_KEPT = "–—…“”‘’°£€¥₹₩¢§¶±×÷√≈≠≤≥→⇒∞"

ALPHABET = frozenset([*map(chr, range(0x20, 0x7F)), *_KEPT])
"""What the voice is given: printable ASCII, and signs that it has words for."""

_INSTEAD = {
    **dict.fromkeys("‐‑‒−﹣－", "-"),
    **dict.fromkeys("―⸺⸻", "—"),
    **dict.fromkeys("ʼʻ′´", "'"),
    **dict.fromkeys("„‟«»「」『』″", '"'),
    **dict.fromkeys("‚‛‹›", "'"),
    **dict.fromkeys("。．।॥۔։", ". "),
    **dict.fromkeys("、，،٬", ", "),
    **dict.fromkeys("؛；", "; "),
    **dict.fromkeys("؟", "? "),
    **dict.fromkeys("¿¡™℠®", ""),
    "\u2044": "/",
    "٫": ".",
    "№": "No. ",
    "‰": " per mille ",
    "©": " copyright ",
    "₽": " rubles ",
    "₺": " lira ",
    "₪": " shekels ",
    "₱": " pesos ",
    "₫": " dong ",
    "₿": " bitcoin ",
    "ß": "ss",
    "ẞ": "SS",
    "æ": "ae",
    "Æ": "Ae",
    "œ": "oe",
    "Œ": "Oe",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "ð": "th",
    "Ð": "Th",
    "þ": "th",
    "Þ": "Th",
    "ħ": "h",
    "Ħ": "H",
    "ı": "i",
    "ŋ": "ng",
    "Ŋ": "Ng",
    "ŧ": "t",
    "Ŧ": "T",
    "ƒ": "f",
    "ĸ": "k",
    "ə": "e",
    "Ə": "E",
}


def readable(text: str) -> str:
    """``text`` with characters of :data:`ALPHABET`, tabs and line ends alone."""
    return text if text.isascii() and text.isprintable() else "".join(map(_plain, text))


@lru_cache(4096)
def _plain(character: str) -> str:
    if character in ALPHABET or character in "\t\n\r":
        return character
    if character in _INSTEAD:
        return _INSTEAD[character]
    if character.isdigit() and not character.isdecimal():  # ① and ₂ are figures of their own
        return f" {unicodedata.digit(character)} "
    if character.isdecimal():
        return str(unicodedata.digit(character))
    category = unicodedata.category(character)
    parts = unicodedata.normalize("NFKD", character)
    if parts != character:
        return "".join(map(_plain, parts))
    if category[0] == "M" or category in ("Cc", "Cf", "Cs", "Co", "Cn", "Sk", "So"):
        return ""
    return " "
