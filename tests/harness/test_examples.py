"""Every example in a docstring runs and prints what it says.

A ``>>>`` example in any docstring of the package is found by :func:`modules_with_examples` and run as a doctest. An
example has the names of its module, and may import more. An asynchronous example defines ``main`` and runs it with
``trio.run(main)``. The comparison ignores the amount of white space, and ``...`` stands for any text.
"""

from __future__ import annotations

import doctest
import importlib
import io
from pathlib import Path

import pytest

import omni_actors

PACKAGE = Path(omni_actors.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PUBLIC = ("actors", "pipelines", "platforms", "entrypoints")
"""Packages whose public functions have examples."""

LEAST_EXAMPLES = 25
"""How many docstrings of the public packages have an example, at least."""


def modules_with_examples() -> list[str]:
    """The dotted names of the package's modules with ``>>>`` in their text. No other module is imported."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def examples_of(name: str) -> list[doctest.DocTest]:
    """The docstrings of a module that have examples. Imports the module."""
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [found for found in finder.find(module, name) if found.examples]


@pytest.mark.process
@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    examples = examples_of(name)
    assert examples, f"{name} has '>>> ' in its text and no example in a docstring"
    for example in examples:
        report = io.StringIO()
        doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=report.write)
        assert not report.getvalue(), report.getvalue()


def test_an_example_that_prints_something_else_is_found() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "planted", None, 0)
    report = io.StringIO()
    doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=report.write)
    assert "Expected:\n    3\nGot:\n    2" in report.getvalue()


def test_the_public_packages_have_examples() -> None:
    packages = [f"{PACKAGE.name}.{package}." for package in PUBLIC]
    modules = [name for name in modules_with_examples() if any(f"{name}.".startswith(it) for it in packages)]
    run = [
        it for name in modules for it in examples_of(name) if any(doctest.SKIP not in x.options for x in it.examples)
    ]
    assert len(run) >= LEAST_EXAMPLES
