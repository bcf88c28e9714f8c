"""Null fields count as absent, whatever their names: programs write null for options that they do not use.

This holds for the objects that a schema describes (its structs, at any depth). Values that are passed through as data
keep their nulls, byte for byte: every field typed as ``Any`` or ``dict``, such as JSON schemas, tools, ``metadata`` and
``chat_template_kwargs``. Fields for which null has a meaning of its own keep it too: in msgspec, fields whose default
is ``UNSET``.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union

import msgspec

from omni_actors.protocol.errors import invalid_request

MAX_OBJECTS = 20_000
"""Most objects in a body with nulls: objects that hold a null, and items of lists of objects. Each is parsed in the
serving process."""

_NULL = b"null"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])

Kinds = frozenset[type[msgspec.Struct]]


def without_nulls(data: bytes, kind: type[msgspec.Struct]) -> bytes:
    """Return a JSON object without the null fields of the schema's objects.

    Raises 400 for too many objects, and msgspec's errors for malformed JSON.
    """
    return _Cleaner().object(data, frozenset((kind,))) if _NULL in data else data


@dataclass(slots=True)
class _Cleaner:
    seen: int = 0

    def object(self, data: bytes, kinds: Kinds) -> bytes:
        self.seen += 1
        self.check(self.seen)
        inner, kept = _shape(kinds)
        left = {}
        for name, value in _OBJECT.decode(data).items():
            text = bytes(value)
            if name in inner and _NULL in text:
                text = self.value(text, inner[name])
            if text != _NULL or name in kept:
                left[name] = msgspec.Raw(text)
        return msgspec.json.encode(left)

    def value(self, data: bytes, kinds: Kinds) -> bytes:
        """Clean a field's value: an object of the schema, a list of such objects, or anything else."""
        if data[:1] == b"{":
            return self.object(data, kinds)
        if data[:1] != b"[":
            return data
        items = _LIST.decode(data)
        self.check(len(items))
        clean = [self.object(it, kinds) if it[:1] == b"{" and _NULL in it else it for it in map(bytes, items)]
        return b"[%b]" % b",".join(clean)

    @staticmethod
    def check(count: int) -> None:
        if count > MAX_OBJECTS:
            raise invalid_request(f"The body has over {MAX_OBJECTS} objects and contains nulls: leave null fields out.")


@functools.cache
def _shape(kinds: Kinds) -> tuple[dict[str, Kinds], frozenset[str]]:
    """Return the fields that hold further structs, and the fields in which null has a meaning, of an object that may be
    any of these structs."""
    inner: dict[str, Kinds] = {}
    kept = set()
    for field in (field for kind in kinds for field in msgspec.structs.fields(kind)):
        if structs := frozenset(_structs(field.type)):
            inner[field.encode_name] = inner.get(field.encode_name, frozenset()) | structs
        if field.default is msgspec.UNSET:
            kept.add(field.encode_name)
    return inner, frozenset(kept)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that a value of this type, or an item of such a list, may be."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from _structs(typing.get_args(hint)[0])
    elif origin in (Union, UnionType, list):
        for part in typing.get_args(hint):
            yield from _structs(part)
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
