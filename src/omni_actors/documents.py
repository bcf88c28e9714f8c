"""The documents that messages name: they lie in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def document(name: str) -> str:
    """The path of a document, such as ``docs/platforms/cuda.md`` or ``README.md``; empty where there is none."""
    for folder in (PACKAGE, PACKAGE.parents[1]):
        if (folder / name).is_file():
            return str(folder / name)
    return ""


def platform_page(name: str) -> str:
    """The path of a platform's page; empty for one that is not this package's."""
    return document(f"docs/platforms/{name}.md")
