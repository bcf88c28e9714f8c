"""No modules import each other in a circle, imports for type checking included.

Two modules in a circle can only be read, moved and understood together. The test looks at import statements outside of
functions; an import within a function is taken for a deliberate late one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import omni_actors

SOURCE = Path(omni_actors.__file__).parent


def _module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_statements(child)


def imports_of(source: str, modules: set[str]) -> set[str]:
    """The modules among ``modules`` that the source imports outside of functions."""
    found = set()
    for statement in _import_statements(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found |= {it.name for it in statement.names}
        elif statement.module is not None:
            below = {f"{statement.module}.{it.name}" for it in statement.names}
            found |= below & modules or {statement.module}
    return found & modules


def circles_in(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other (strongly connected components with more than one member)."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {tuple(sorted(it for it in reach[name] if name in reach[it])) for name in graph if name in reach[name]}
    return [list(group) for group in sorted(groups)]


def test_no_import_leads_back_to_its_module() -> None:
    paths = {_module_of(path): path for path in SOURCE.rglob("*.py")}
    graph = {name: imports_of(path.read_text(), set(paths)) - {name} for name, path in paths.items()}
    assert sum(map(len, graph.values())) > 1000
    found = circles_in(graph)
    assert not found, "modules import each other in a circle:\n" + "\n".join(map(", ".join, found))


def test_a_circle_is_found() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import a\ndef late():\n    import p.b\n"
    assert imports_of(source, {"p", "p.a", "p.b"}) == {"p.a"}
    assert circles_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
