"""The page of each platform agrees with its class, names an extra that exists, and is linked from the README."""

from __future__ import annotations

import re
import tomllib

import pytest
from tests.harness.platform_pages import NAMES, PAGES, ROOT, glance, options, page, platform, section

SECTIONS = ("Install", "How it is found", "At a glance", "Options", "What is selected", "Not verified on hardware")

EXTRA = {"cpu": "torch"}
"""Platform → its extra, where the two have different names."""


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_every_section_in_order(name: str) -> None:
    assert tuple(re.findall(r"^## (.+)$", page(name), re.MULTILINE)) == SECTIONS
    assert len(section(name, "Not verified on hardware")) > 40
    assert page(name).startswith(f"# Platform {name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_pages_tables_say_what_the_class_says(name: str) -> None:
    """If a table differs, ``make reference`` writes it anew; check the prose of the page too."""
    assert section(name, "At a glance") == glance(platform(name))
    assert section(name, "Options") == options(platform(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_explains_every_variable_and_way_of_its_class(name: str) -> None:
    it = platform(name)
    prose = section(name, "How it is found") + section(name, "What is selected") + section(name, "Install")
    for variable in it.visibility:
        assert f"`{variable}`" in prose
    for option in it.options:
        assert option in prose, f"nothing tells what '{option}' does beside its own line"


@pytest.mark.parametrize("name", NAMES)
def test_the_extra_of_a_page_can_be_installed(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = EXTRA.get(name, name)
    assert extra in extras
    assert f"pip install 'omni-actors[{extra}]'" in section(name, "Install")
    for package in platform(name).distributions:
        assert package == "torch" or f"`{package}`" in section(name, "Install")


def test_the_readme_and_the_overview_name_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    overview = (PAGES / "index.md").read_text()
    for name in NAMES:
        assert f"(docs/platforms/{name}.md)" in readme
        assert f"({name}.md)" in overview
    assert {path.stem for path in PAGES.glob("*.md")} == {"index", *NAMES}
