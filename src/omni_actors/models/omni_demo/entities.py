"""HTML entities in text received in pieces: ``&amp;`` is ``&``."""

from __future__ import annotations

import html
import re
from html.entities import html5

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|([A-Za-z][A-Za-z0-9]{1,31}));")
_BEGUN = re.compile(r"&(?:#?[A-Za-z0-9]{0,32})?\Z")


class Entities:
    """A decoder that takes text in pieces and decodes each entity once. Names unknown to HTML stay."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str, end: bool = False) -> str:
        """Take more text and return the decoded text that is certain; with ``end``, all remaining text."""
        text = self._held + text
        begun = None if end else _BEGUN.search(text, max(0, len(text) - 34))
        self._held = "" if begun is None else begun[0]
        return _ENTITY.sub(_decoded, text[: len(text) - len(self._held)])


def _decoded(match: re.Match[str]) -> str:
    name = match[1]
    return match[0] if name is not None and f"{name};" not in html5 else html.unescape(match[0])
