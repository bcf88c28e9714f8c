"""The documents of this repository, cut into the code blocks and tables that tests hold against the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of one language in a document, whose path is relative to the repository."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def section(document: str, title: str) -> str:
    """Return the text below a heading of any level, up to the next heading (or comment in a code block)."""
    pattern = rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)"
    found = re.search(pattern, (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no section {title!r}"
    return found[1]


def rows(document: str, title: str | None = None) -> list[list[str]]:
    """Return the cells of all table rows whose first cell begins with code, below a heading or anywhere."""
    text = (ROOT / document).read_text() if title is None else section(document, title)
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
