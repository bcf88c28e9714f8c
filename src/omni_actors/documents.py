"""Documents named in messages: files of the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def document(name: str) -> str:
    """Return the path of a document, such as ``docs/platforms/cuda.md`` or ``README.md``; an empty text if there is
    none."""
    for folder in (PACKAGE, PACKAGE.parents[1]):
        if (folder / name).is_file():
            return str(folder / name)
    return ""


def platform_page(name: str) -> str:
    """Return the path of a platform's page; an empty text for a platform of another distribution."""
    return document(f"docs/platforms/{name}.md")
