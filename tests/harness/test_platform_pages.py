"""Each platform's page says what its class says, has an extra that can be installed, and is found from the README."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.probe import BUILTINS
from omni_actors.platforms.select import load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "platforms"
NAMES = ("cpu", *BUILTINS)
SECTIONS = ("Install", "How it is found", "At a glance", "Options", "What is selected", "Not verified on hardware")

EXTRA = {"cpu": "torch"}
"""The extra of a platform that is not called like it."""


def platform(name: str) -> OmniPlatform:
    return CpuPlatform() if name == "cpu" else load(BUILTINS[name])


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def section(name: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name}.md has no section '{title}'"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The cells of every row of the tables in it, without their heads."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines() if "|" in line
    ]
    return [row for row in rows if not set("".join(row)) <= set("-|: ")][1:]


def listed(names: object) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"  # type: ignore[attr-defined]


def glance(it: OmniPlatform) -> list[list[str]]:
    engines = ", ".join(f"`{kind}`: `{engine.rpartition(':')[2]}`" for kind, engine in it.engines.items())
    others = [dtype for dtype in it.dtypes if dtype != it.default_dtype]
    return [
        ["dtypes", f"`{it.default_dtype}`, or {listed(others)}"],
        ["engines", engines],
        ["runtime", f"`{it.runtime}`"],
        ["collectives between ranks", listed([it.collectives] if it.collectives else [])],
        ["device to device", listed(it.transports)],
        ["quantized checkpoints", listed([method for method, reason in it.quantization.items() if not reason])],
        ["variables that hide devices", listed(it.visibility)],
        ["packages that workers import", listed(it.distributions)],
        ["builds of vLLM", listed(it.vllm_builds)],
        ["planned for without a device", "yes" if it.plannable else "no"],
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_every_section_in_order(name: str) -> None:
    titles = re.findall(r"^## (.+)$", page(name), re.MULTILINE)
    assert tuple(title for title in titles if title in SECTIONS) == SECTIONS
    assert len(section(name, "Not verified on hardware").strip()) > 40
    assert page(name).startswith(f"# Platform {name}\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_the_class_says(name: str) -> None:
    assert table(section(name, "At a glance")) == glance(platform(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_lists_every_option_with_its_default_and_meaning(name: str) -> None:
    it = platform(name)
    wanted = [
        [f"`platforms.{name}.{key}`", "none" if default is None else str(default).lower(), it.options_doc[key]]
        for key, default in it.options.items()
    ]
    assert table(section(name, "Options")) == wanted
    if not wanted:
        assert section(name, "Options").strip() == "None."


@pytest.mark.parametrize("name", NAMES)
def test_the_extra_of_a_page_can_be_installed(name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = EXTRA.get(name, name)
    assert extra in extras
    assert f"pip install 'omni-actors[{extra}]'" in section(name, "Install")
    for package, asks in platform(name).distributions.items():
        if asks in extras:
            assert f"`{package}`" in section(name, "Install") or package == "torch"


def test_the_readme_names_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in NAMES:
        assert f"(docs/platforms/{name}.md)" in readme
    assert {path.stem for path in PAGES.glob("*.md")} == set(NAMES)
