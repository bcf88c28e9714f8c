"""The reading of settings: a deploy file (YAML) and ``--set`` options, both through one closed schema.

A setting is a dotted path, a checked value and an origin. Unknown keys, wrong values and keys given twice are refused
with file and line (or the option's text) and the nearest known key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from omni_actors.pipelines.deploy.schema import Group, Leaf
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import Origin, PlanError


@dataclass(frozen=True, slots=True)
class Setting:
    path: str
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Override:
    """One ``path=value`` of the command line, which replaces the deploy file's value.

    Args:
        assignment: ``path=value``; the value is YAML.
        typed: The text on the command line, for messages.

    Example:
        >>> Override.of("stages.llm.replicas=2").typed
        '--set stages.llm.replicas=2'
    """

    assignment: str
    typed: str

    @classmethod
    def of(cls, given: str | Override) -> Override:
        return given if isinstance(given, Override) else cls(given, f"--set {given}")


def read_overlay(path: Path, schema: Group) -> list[Setting]:
    """Read a deploy file.

    Args:
        path: The file.
        schema: The keys that the file may have.

    Returns:
        The settings, in the order of the file.

    Raises:
        PlanError: The file cannot be read, or is wrong; the message has file and line.
    """
    document = _compose(path)
    return [] if document is None else list(_walk(document, schema, (), str(path), {}))


def peek_overlay(path: Path, *paths: str) -> list[Setting]:
    """Read a few texts of a deploy file before its schema is known.

    Args:
        path: The file.
        paths: Dotted paths, in which ``*`` stands for any one key.

    Returns:
        The unchecked settings at these paths.
    """
    document = _compose(path)
    wanted = [tuple(one.split(".")) for one in paths]
    return [] if document is None else list(_scalars(document, (), wanted, f"{path}:1"))


def peek_overrides(overrides: Sequence[str | Override], *paths: str) -> list[Setting]:
    """Read the overrides of a few paths, unchecked, as :func:`peek_overlay` does with a deploy file."""
    wanted = [tuple(one.split(".")) for one in paths]
    found = []
    for override in map(Override.of, overrides):
        path, _, source = override.assignment.partition("=")
        if any(_fits(tuple(path.strip().split(".")), keys) for keys in wanted):
            node = _composed(source, override.typed)
            if isinstance(node, yaml.ScalarNode):
                found.append(Setting(path.strip(), node.value, Origin("command line", override.typed)))
    return found


def _scalars(node: yaml.Node, above: tuple[str, ...], wanted: list[tuple[str, ...]], where: str) -> Iterator[Setting]:
    """Yield the texts at the wanted paths, going no deeper than the longest of the paths."""
    if isinstance(node, yaml.ScalarNode) and any(_fits(above, keys) for keys in wanted):
        yield Setting(".".join(above), node.value, Origin("overlay", where))
    if isinstance(node, yaml.MappingNode):
        file = where.rpartition(":")[0]
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                path = (*above, *key.value.split("."))
                if any(_fits(path, keys[: len(path)]) for keys in wanted):
                    yield from _scalars(value, path, wanted, f"{file}:{_line(key)}")


def _fits(path: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    return len(path) == len(keys) and all(wanted in ("*", key) for key, wanted in zip(path, keys, strict=True))


def read_overrides(overrides: Sequence[str | Override], schema: Group) -> list[Setting]:
    """Read overrides.

    Args:
        overrides: ``path=value`` texts of ``--set``, or overrides of other options. A value is YAML, so ``[cuda:0,
            cuda:1]`` is a list.
        schema: The keys that may be set.

    Returns:
        The settings, in order.

    Raises:
        PlanError: An override is wrong; the message has its text.
    """
    found = []
    named: dict[str, str] = {}
    for override in map(Override.of, overrides):
        origin = Origin("command line", override.typed)
        path, separator, source = override.assignment.partition("=")
        if not separator:
            raise PlanError(f"{origin.where}: takes path=value, such as stages.llm.replicas=2")
        keys, node = located(schema, tuple(path.strip().split(".")), (), origin.where)
        if isinstance(node, Group):
            raise PlanError(f"{origin.where}: '{path}' has keys below it; {nearest('', node.keys)}")
        name = ".".join(keys)
        if (other := named.setdefault(name, path.strip())) != path.strip():
            raise PlanError(f"{origin.where}: '{path.strip()}' and '{other}' are the same option; give one of them")
        composed = _composed(source, origin.where)
        value = None if composed is None else _construct(composed, origin.where)
        found.append(Setting(name, _checked(node, value, path, origin.where), origin))
    return found


def _composed(source: str, where: str) -> yaml.Node | None:
    try:
        return yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PlanError(f"{where}: the value is not valid YAML: {_problem(error)}") from None
    except RecursionError:
        raise PlanError(f"{where}: the value is nested too deeply") from None


def located(
    schema: Group, keys: tuple[str, ...], above: tuple[str, ...], where: str
) -> tuple[tuple[str, ...], Leaf | Group]:
    """Find a key by its path.

    Args:
        schema: The group to start from.
        keys: The path below ``schema``, as somebody wrote it.
        above: The path of ``schema`` itself, for messages.
        where: Where the path was written; messages begin with it.

    Returns:
        The path with aliases replaced by the keys' own names, and the key's leaf or group.

    Raises:
        PlanError: There is no such key; the message names the nearest one.
    """
    node: Leaf | Group = schema
    path: list[str] = []
    for index, key in enumerate(keys):
        place = f"{where}: " + (f"{'.'.join(above)}: " if above else "")
        if isinstance(node, Leaf):
            if node.whole:
                path += keys[index:]
                break
            raise PlanError(f"{place}takes a value and has no key '{key}'")
        name = node.own_name(key)
        if name is None:
            raise PlanError(f"{place}unknown key '{key}'; {nearest(key, node.names())}")
        node = node.keys[name]
        above = (*above, key)
        path.append(name)
    return tuple(path), node


def _compose(path: Path) -> yaml.Node | None:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the deploy file {path}: {error}") from None
    try:
        return yaml.compose(source, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PlanError(f"{path}:{_line_of(error)}: not valid YAML: {_problem(error)}") from None
    except RecursionError:
        raise PlanError(f"{path}: nested too deeply") from None


def _walk(
    node: yaml.Node, schema: Group, above: tuple[str, ...], file: str, seen: dict[str, tuple[str, int]]
) -> Iterator[Setting]:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return
    if not isinstance(node, yaml.MappingNode):
        raise PlanError(f"{file}:{_line(node)}: {'.'.join(above) or 'a deploy file'}: takes keys with values")
    for key, value in node.value:
        where = f"{file}:{_line(key)}"
        if not isinstance(key, yaml.ScalarNode):
            raise PlanError(f"{where}: a key is a text")
        keys = tuple(key.value.split("."))
        own, found = located(schema, keys, above, where)
        path = (*above, *own)
        if isinstance(found, Group):
            yield from _walk(value, found, path, file, seen)
            continue
        name = ".".join(path)
        typed = ".".join((*above, *keys))
        if name in seen:
            other, line = seen[name]
            same = "" if other == typed else f" as '{other}'"
            raise PlanError(f"{where}: '{typed}' is given already in line {line}{same}")
        seen[name] = typed, _line(key)
        yield Setting(name, _checked(found, _construct(value, where), typed, where), Origin("overlay", where))


def _construct(node: yaml.Node, where: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise PlanError(f"{where}: '{twice[0]}' is given twice")
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise PlanError(f"{where}: {_problem(error)}") from None
    except ValueError as error:  # the text looks like a date, and there is no such day
        raise PlanError(f"{where}: {error}; put quotes around a text") from None
    except (LookupError, AttributeError, TypeError):  # "!!int ''", "!!bool x": PyYAML trusts a tag that is written
        raise PlanError(f"{where}: the value is not of the type that its tag says") from None
    finally:
        loader.dispose()


def _checked(leaf: Leaf, value: Any, path: str, where: str) -> Any:
    try:
        return leaf.check(value)
    except ValueError as error:
        raise PlanError(f"{where}: '{path}' {error}, not {value!r}") from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _line_of(error: yaml.YAMLError) -> int:
    mark = getattr(error, "problem_mark", None)
    return int(mark.line) + 1 if mark is not None else 1


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
