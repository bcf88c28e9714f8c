"""The treatment of the fields of a wire format, and the wording of errors about them.

Every field is honoured, or is an accepted no-op (:class:`NoOp`, published by :func:`accepted_no_ops`), or is refused
with a 400 that names it (:class:`Refused`, and every name that no struct has).
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from omni_actors.entrypoints.openai.nulls import without_nulls
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.nesting import too_deep


@dataclass(frozen=True, slots=True)
class NoOp:
    """Marks a field that is accepted and changes nothing. ``why`` goes into the documentation."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Marks a field that is refused unless its value asks for nothing: null, or one of ``neutral``."""

    why: str
    neutral: tuple[Any, ...] = ()


S = TypeVar("S", bound=msgspec.Struct)


def decode(data: bytes, kind: type[S]) -> S:
    """Return a body as its struct; null fields of its objects count as absent
    (:mod:`~omni_actors.entrypoints.openai.nulls`).

    Raises 400 with the field's path, as OpenAI writes it, in ``param``.
    """
    try:
        made = msgspec.json.decode(without_nulls(data, kind), type=kind)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from None
    except RecursionError:
        raise too_deep(data) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_request(f"The body is not valid JSON: {error}") from None
    refuse_unserved(made)
    return made


def convert(values: dict[str, Any], kind: type[S]) -> S:
    """Return a form's fields (texts, and lists of texts) as their struct, under the same rules. An empty text counts as
    absent: a form has no other way to leave a field open."""
    given = {name: [it for it in value if it] if isinstance(value, list) else value for name, value in values.items()}
    try:
        made = msgspec.convert({name: value for name, value in given.items() if value}, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise explain(str(error), kind) from None
    refuse_unserved(made)
    return made


@functools.cache
def list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a struct that take a list."""
    return frozenset(name for name, hint in typing.get_type_hints(kind).items() if list in _origins(hint))


def _origins(hint: Any) -> set[Any]:
    return {typing.get_origin(part) for part in (hint, *typing.get_args(hint))}


def refuse_unserved(made: msgspec.Struct, at: str = "") -> None:
    """Raise 400 for the first field marked :class:`Refused` that asks for something. ``at`` is the struct's path."""
    for name, mark in marks(type(made), Refused).items():
        value = getattr(made, name)
        if value is not None and not any(type(value) is type(it) and value == it for it in mark.neutral):
            raise invalid_request(f"'{at}{name}' is not supported: {mark.why}", at + name, "unsupported_parameter")


M = TypeVar("M", NoOp, Refused)


@functools.cache
def marks(kind: type[msgspec.Struct], mark: type[M]) -> dict[str, M]:
    """Return the fields of a struct that carry a mark of this type."""
    return {name: it for name, it in _marked(kind).items() if isinstance(it, mark)}


@functools.cache
def _marked(kind: type[msgspec.Struct]) -> dict[str, NoOp | Refused]:
    return {
        name: it
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        for it in getattr(hint, "__metadata__", ())
        if isinstance(it, NoOp | Refused)
    }


def accepted_no_ops(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the published list: each no-op field with the reason why it changes nothing."""
    return {name: mark.why for name, mark in marks(kind, NoOp).items()}


LONGEST_QUOTE = 200
"""Most characters of a client's value that an error repeats."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"^Object (?P<what>contains unknown|missing required) field `(?P<name>[^`]*)`$")
_VALUE = re.compile(r"^Invalid (?:enum )?value '?(?P<value>[^']*)'?$")


def explain(message: str, kind: type[msgspec.Struct]) -> OmniError:
    """Return msgspec's message as a client's error: the same facts, with the path in ``param``."""
    found = _AT.match(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "").lstrip(".").replace("[...]", "")
    field = _FIELD.match(what)
    if field is not None:
        name = _short(field["name"])
        param = f"{path}.{name}" if path else name
        if field["what"].startswith("missing"):
            return invalid_request(f"Missing required field '{param}'.", param, "missing_required_parameter")
        known = kind.__struct_encode_fields__ if not path else ()
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return invalid_request(f"Unknown field '{param}'.{hint}", param, "unknown_parameter")
    if path.endswith(".type") and (value := _VALUE.match(what)) is not None:
        what = f"Parts of type '{value['value']}' are not supported"
    where = f"'{path}': " if path else "The body: "
    return invalid_request(f"{where}{_short(what.replace('`', ''))}.", path or None, "invalid_value")


def _short(text: str) -> str:
    """Shorten a client's value: an error needs no 4 MiB of it."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
