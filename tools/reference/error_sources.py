"""The error codes that the source gives to errors, found by reading the source.

A *maker* is a function with a parameter ``code`` that returns or raises an error, such as ``invalid_request``, and the
class ``ErrorInfo`` itself.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "omni_actors"

DEFAULT_STATUS = 500
"""The status of an ``ErrorInfo`` that names none."""


@dataclass(frozen=True, slots=True)
class Maker:
    """How a function takes an error's code and status: by which position, or the status that all its errors have."""

    code: int | None = None
    status_at: int | None = None
    status: int = DEFAULT_STATUS


def codes() -> Mapping[str, frozenset[int]]:
    """Return every error code of the source, in order, with the HTTP statuses that it comes with."""
    trees = [ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))]
    shared = {"ErrorInfo": Maker()}
    for tree in trees:
        shared |= {name: maker for name, maker in _makers(tree, shared).items() if not name.startswith("_")}
    found: defaultdict[str, set[int]] = defaultdict(set)
    for tree in trees:
        makers = shared | _makers(tree, shared)
        for function in _functions(tree):
            for call in _calls(function):
                maker = makers.get(_callee(call))
                if maker is None:
                    continue
                for code in _texts(_argument(call, "code", maker.code), function):
                    found[code].add(_status(call, maker))
    return {code: frozenset(statuses) for code, statuses in sorted(found.items())}


def _makers(tree: ast.Module, known: Mapping[str, Maker]) -> dict[str, Maker]:
    found: dict[str, Maker] = {}
    for it in ast.walk(tree):
        if not isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        positional = [argument.arg for argument in (*it.args.posonlyargs, *it.args.args)]
        if "code" not in {*positional, *(argument.arg for argument in it.args.kwonlyargs)}:
            continue
        for call in _calls(it):
            inner = ({**known, **found}).get(_callee(call))
            if inner is not None:
                at = positional.index("status") if "status" in positional else None
                code = positional.index("code") if "code" in positional else None
                found[it.name] = Maker(code, at, _status(call, inner))
                break
    return found


def _functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the functions of a module, nested ones with the function around them, and the module's own statements."""
    remaining: list[ast.AST] = [tree]
    while remaining:
        for child in ast.iter_child_nodes(remaining.pop()):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            elif isinstance(child, ast.ClassDef):
                remaining.append(child)
            else:
                yield child


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (it for it in ast.walk(node) if isinstance(it, ast.Call))


def _callee(call: ast.Call) -> str:
    """Return the last part of the name that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _argument(call: ast.Call, name: str, position: int | None) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position is not None and position < len(call.args) else None


def _status(call: ast.Call, maker: Maker) -> int:
    value = _argument(call, "status", maker.status_at)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else maker.status


def _texts(value: ast.expr | None, function: ast.AST) -> Iterator[str]:
    """Yield the texts that an expression may be; a name is what the function assigns to it."""
    if isinstance(value, ast.Constant):
        if isinstance(value.value, str):
            yield value.value
    elif isinstance(value, ast.IfExp):
        yield from _texts(value.body, function)
        yield from _texts(value.orelse, function)
    elif isinstance(value, ast.Name):
        for it in ast.walk(function):
            if isinstance(it, ast.Assign) and any(isinstance(to, ast.Name) and to.id == value.id for to in it.targets):
                yield from _texts(it.value, function)
