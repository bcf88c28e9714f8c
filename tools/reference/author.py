"""The page of the author's kit: every name of ``omni_actors.author``, read from the source and not imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.reference.error_sources import SOURCE
from tools.reference.markdown import documented, page

from omni_actors import author

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples):$")


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: A name has no docstring, or a docstring does not begin with a sentence.
    """
    parts = [part for name, module in author.modules().items() for part in _entry(name, module)]
    return page(
        "Author's kit",
        "Every name that `omni_actors.author` exports, for authors of pipelines, engines, connectors and balancers. "
        "[Plug-ins](../plugins.md) shows how they are used. Names marked *torch* import torch.",
        *parts,
    )


def _entry(name: str, module: str) -> Iterator[str]:
    node = _definition(name, SOURCE.joinpath(*module.split(".")))
    yield f"## {name}"
    torch = ", *torch*" if name in author.TORCH else ""
    if isinstance(node, ast.ClassDef):
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        yield f"`class {name}{bases}`, in `omni_actors.{module}`{torch}"
        yield from _text(name, node)
        if rows := list(_members(name, node)):
            yield "\n".join(rows)
        return
    yield f"`{_signature(node)}`, in `omni_actors.{module}`{torch}"
    yield from _text(name, node)


def _definition(name: str, module: Path) -> ast.ClassDef | ast.FunctionDef:
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"{path} defines no {name}")


def _members(owner: str, node: ast.ClassDef) -> Iterator[str]:
    """Yield a list item for each public field, property and method of a class."""
    for place, it in enumerate(node.body):
        if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name) and not it.target.id.startswith("_"):
            default = "" if it.value is None else f" = {ast.unparse(it.value)}"
            following = node.body[place + 1] if place + 1 < len(node.body) else None
            said = _constant(following)
            yield f"- `{it.target.id}: {ast.unparse(it.annotation)}{default}`" + (
                f": {_plain(' '.join(said.split()))}" if said else ""
            )
        elif isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef) and not it.name.startswith("_"):
            doc = ast.get_docstring(it)
            if doc is None:  # the overridden method has one
                continue
            documented(f"{owner}.{it.name}", doc.split("\n\n")[0])
            field = any(ast.unparse(mark) == "property" for mark in it.decorator_list)
            yield f"- `{it.name if field else _signature(it)}`: {_first(doc)}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{node.name}({arguments}){returns}"


def _constant(node: ast.AST | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _text(name: str, node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield the paragraphs of a docstring; a section of arguments becomes a list, an example a block of code."""
    doc = ast.get_docstring(node) or ""
    documented(name, doc.split("\n\n")[0])
    for paragraph in doc.split("\n\n"):
        lines = paragraph.splitlines()
        if lines[0].strip().startswith(">>>"):
            yield "\n".join(["```pycon", *map(str.strip, lines), "```"])
        elif section := _SECTION.match(lines[0].strip()):
            yield from _section(section[1], lines[1:])
        else:
            yield _plain(" ".join(map(str.strip, lines)))


def _section(name: str, lines: list[str]) -> Iterator[str]:
    if name.startswith("Example"):
        yield "\n".join(["```pycon", *map(str.strip, lines), "```"])
        return
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    items: list[str] = []
    for line in lines:
        if line.startswith(" " * (indent + 1)) and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    yield f"{name}:\n\n" + "\n".join(f"- {_plain(item)}" for item in items)


def _first(doc: str) -> str:
    """Return the first sentence of a docstring."""
    paragraph = _plain(" ".join(doc.strip().split("\n\n")[0].split()))
    return re.split(r"(?<=\.)\s(?=[A-Z`])", paragraph)[0]


def _plain(text: str) -> str:
    return _ROLE.sub(lambda it: f"`{it[1].rpartition('.')[2]}`", text).replace("``", "`")
