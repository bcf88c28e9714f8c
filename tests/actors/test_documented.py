"""The public interface of the actor library is documented."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from omni_actors import actors


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the library, and the methods of its classes, by name."""
    for name in actors.__all__:
        found = getattr(actors, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found):
            members = (
                (f"{name}.{key}", getattr(it, "__func__", it)) for key, it in vars(found).items() if key[0] != "_"
            )
            yield from ((key, it) for key, it in members if inspect.isfunction(it))


FUNCTIONS = dict(public_functions())


@pytest.mark.parametrize("name", actors.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert getattr(actors, name).__doc__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_described(name: str) -> None:
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    names = [it for it in inspect.signature(function).parameters if it != "self"]
    section = text.partition("Args:\n")[2]
    assert text
    assert [it for it in names if f"    {it}: " not in section] == []
