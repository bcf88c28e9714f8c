"""Docstrings are sentences that name what they speak of (``docs/contributing/style.md``).

Three things can be checked by machine: how a docstring begins, that its summary ends as a sentence, and how many
pronouns stand among its words. The last is a thermometer, not an aim: a docstring is rewritten for its reader.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import omni_actors

SOURCE = Path(omni_actors.__file__).parent
PRONOUNS = re.compile(
    r"\b(it|its|they|them|their|those|these|this|that|who|whom|whose|which|what|whoever|whatever)\b", re.IGNORECASE
)
RIDDLE = re.compile(r"(Of|Those|Who|Whoever|What|As|By|So)\b")
SENTENCE_END = re.compile(r"[.!?:…][)\"'”`*]*$")
"""A colon ends a summary too: what follows is a list, a table or an example."""


@dataclass(frozen=True)
class Ceiling:
    """The most that a package may have."""

    pronouns: float
    """Pronouns per 100 words of its docstrings."""
    riddles: int = 0
    """Docstrings that begin with Of, Those, Who, Whoever, What, As, By or So."""


CEILINGS = {
    "actors": Ceiling(pronouns=5.0),
    "connectors": Ceiling(pronouns=5.0),
    "entrypoints": Ceiling(pronouns=5.5),
    "media": Ceiling(pronouns=4.5),
    "models": Ceiling(pronouns=4.5),
    "omni_actors": Ceiling(pronouns=5.0),
    "orchestrator": Ceiling(pronouns=6.0),
    "pipelines": Ceiling(pronouns=6.0),
    "platforms": Ceiling(pronouns=5.0),
    "plugins": Ceiling(pronouns=5.5),
    "protocol": Ceiling(pronouns=4.5),
    "stages": Ceiling(pronouns=5.5),
    "telemetry": Ceiling(pronouns=6.0),
    "testing": Ceiling(pronouns=4.5),
    "worker": Ceiling(pronouns=6.0),
}
"""Lower a figure when a package has become better; never raise one."""

NEW_PACKAGE = Ceiling(pronouns=6.0)
"""For a package that is not in the table."""


@dataclass(frozen=True)
class Docstring:
    package: str
    place: str
    text: str
    public: bool

    @property
    def summary(self) -> str:
        return self.text.partition("\n\n")[0].strip()


def docstrings_of(source: str, path: str = "module.py", package: str = "") -> Iterator[Docstring]:
    """The docstrings of a module: its own, its classes', its functions'."""

    def below(node: ast.AST, public: bool) -> Iterator[Docstring]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                shown = public and not child.name.startswith("_")
                if text := ast.get_docstring(child):
                    yield Docstring(package, f"{path}:{child.lineno}", text, shown)
                yield from below(child, shown and isinstance(child, ast.ClassDef))
            else:
                yield from below(child, public)

    tree = ast.parse(source)
    if text := ast.get_docstring(tree):
        yield Docstring(package, f"{path}:1", text, True)
    yield from below(tree, True)


def _all_docstrings() -> dict[str, list[Docstring]]:
    found: defaultdict[str, list[Docstring]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        below = path.relative_to(SOURCE)
        package = below.parts[0] if len(below.parts) > 1 else "omni_actors"
        found[package] += docstrings_of(path.read_text(), f"src/omni_actors/{below}", package)
    return found


DOCSTRINGS = _all_docstrings()


def is_riddle(docstring: Docstring) -> bool:
    return RIDDLE.match(docstring.text) is not None


def is_fragment(docstring: Docstring) -> bool:
    return docstring.public and not SENTENCE_END.search(docstring.summary)


def pronoun_rate(docstrings: list[Docstring]) -> float:
    words = sum(len(re.findall(r"[A-Za-z']+", it.text)) for it in docstrings)
    return 100 * sum(len(PRONOUNS.findall(it.text)) for it in docstrings) / max(words, 1)


def _shown(docstrings: list[Docstring]) -> str:
    return "\n".join(f"{it.place}: {' '.join(it.summary.split())[:100]!r}" for it in docstrings)


def _ceiling(package: str) -> Ceiling:
    return CEILINGS.get(package, NEW_PACKAGE)


@pytest.mark.parametrize("package", sorted(DOCSTRINGS))
def test_docstrings_begin_with_what_they_speak_of(package: str) -> None:
    found = [it for it in DOCSTRINGS[package] if is_riddle(it)]
    most = _ceiling(package).riddles
    assert len(found) <= most, (
        f"{len(found)} docstrings of {package} (at most {most}) begin with {RIDDLE.pattern}:\n{_shown(found)}"
    )


@pytest.mark.parametrize("package", sorted(DOCSTRINGS))
def test_summaries_end_as_sentences(package: str) -> None:
    found = [it for it in DOCSTRINGS[package] if is_fragment(it)]
    assert not found, f"public docstrings of {package} whose first paragraph has no end:\n{_shown(found)}"


@pytest.mark.parametrize("package", sorted(DOCSTRINGS))
def test_docstrings_name_what_they_speak_of(package: str) -> None:
    docstrings = DOCSTRINGS[package]
    rate, most = pronoun_rate(docstrings), _ceiling(package).pronouns
    worst = sorted(docstrings, key=lambda it: len(PRONOUNS.findall(it.text)), reverse=True)[:10]
    lines = "\n".join(f"{it.place}: {', '.join(PRONOUNS.findall(it.text))}" for it in worst)
    assert rate <= most, (
        f"{rate:.1f} pronouns per 100 words in the docstrings of {package} (at most {most}); most are in\n{lines}"
    )


def test_the_table_names_packages_that_exist() -> None:
    assert sorted(CEILINGS.keys() - DOCSTRINGS.keys()) == []


def test_a_riddle_and_a_fragment_are_found() -> None:
    source = '"""A module."""\ndef shout():\n    """Who calls it"""\ndef _whisper():\n    """What nobody sees"""\n'
    module, shout, whisper = docstrings_of(source)
    assert [is_riddle(it) for it in (module, shout, whisper)] == [False, True, True]
    assert [is_fragment(it) for it in (module, shout, whisper)] == [False, True, False]
    assert shout.place == "module.py:2"
    assert pronoun_rate([shout]) == pytest.approx(200 / 3)
