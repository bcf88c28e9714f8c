"""The tables of the platforms' pages, made from the classes; ``python -m tests.harness.platform_pages`` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.probe import BUILTINS
from omni_actors.platforms.select import load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "platforms"
NAMES = ("cpu", *BUILTINS)

Row = tuple[str, ...]


def platform(name: str) -> OmniPlatform:
    return CpuPlatform() if name == "cpu" else load(BUILTINS[name])


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def section(name: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name}.md has no section '{title}'"
    return found[1].strip()


def table(head: Row, rows: Iterable[Row]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def glance(it: OmniPlatform) -> str:
    engines = ", ".join(f"`{kind}`: `{engine.rpartition(':')[2]}`" for kind, engine in it.engines.items())
    others = [dtype for dtype in it.dtypes if dtype != it.default_dtype]
    rows = [
        ("dtypes", f"`{it.default_dtype}`, or {_listed(others)}"),
        ("engines", engines),
        ("runtime", f"`{it.runtime}`"),
        ("collectives between ranks", _listed([it.collectives] if it.collectives else [])),
        ("device to device", _listed(it.transports)),
        ("quantized checkpoints", _listed([method for method, reason in it.quantization.items() if not reason])),
        ("variables that hide devices", _listed(it.visibility)),
        ("packages that workers import", _listed(it.distributions)),
        ("builds of vLLM", _listed([build or "(unnamed)" for build in it.vllm_builds])),
        ("planned for without a device", "yes" if it.plannable else "no"),
    ]
    return table(("what", "is"), rows)


def options(it: OmniPlatform) -> str:
    rows = [
        (f"`platforms.{it.name}.{key}`", "none" if option.default is None else str(option.default).lower(), option.doc)
        for key, option in it.options.items()
    ]
    return table(("option", "default", "meaning"), rows) if rows else "None."


def write(name: str) -> None:
    """Write the tables of a page, and leave its prose as it is."""
    it = platform(name)
    text = page(name)
    for title, content in (("At a glance", glance(it)), ("Options", options(it))):
        text = text.replace(f"## {title}\n\n{section(name, title)}\n", f"## {title}\n\n{content}\n")
    (PAGES / f"{name}.md").write_text(text)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    for each in NAMES:
        write(each)
