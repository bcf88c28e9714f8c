"""The documentation site is whole: every page is in its navigation, and what pages link to and name exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.documents import DOCS, PAGES, README, ROOT

DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"`((?:benchmarks|deploy|docs|examples|src|tests)/[\w./-]*\w)`")
"""A path that begins at the root of the repository, as pages name files."""


class _Settings(yaml.SafeLoader):
    """A reader of ``mkdocs.yml`` that leaves the names of Python objects as they are."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _loader, suffix, _node: suffix)


def _pages(nav: Any) -> list[str]:
    """Return the files of a navigation tree, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(entry)]


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_can_be_read_in_two_minutes() -> None:
    assert len(README.read_bytes()) <= 12_288


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Settings)["nav"]
    assert sorted(_pages(nav)) == [path.relative_to(DOCS).as_posix() for path in PAGES]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_their_headings(document: Path) -> None:
    for link in LINK.findall(_without_code(document.read_text())):
        if re.match(r"\w+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not heading or heading in _headings(target), link


def _headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as mkdocs and GitHub make them."""
    titles = re.findall(r"^#+ (.+)$", _without_code(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(document: Path) -> None:
    if document.name == "renames.md":  # names files that are no more
        return
    missing = [name for name in NAMED.findall(document.read_text()) if not (ROOT / name).exists()]
    assert missing == []


CODE = re.compile(r"`(?:python -m )?(omni_actors(?:\.\w+)+(?::\w+)?)(?:\([^`]*)?`")
"""A dotted name of this package, as pages name modules, classes and functions."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: it.relative_to(ROOT).as_posix())
def test_code_that_a_page_names_exists(document: Path) -> None:
    if document.name == "renames.md":
        return
    groups = {f"omni_actors.{it}" for it in ("balancers", "connectors", "engines", "pipelines", "platforms")}
    for name in set(CODE.findall(document.read_text())) - groups:  # which are groups of entry points
        assert pkgutil.resolve_name(name) is not None
