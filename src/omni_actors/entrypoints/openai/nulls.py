"""A field that is null counts as absent, whatever its name: programs write out what they know nothing of as null.

This holds in the objects that a schema describes (its structs, wherever they nest). Values that are passed through as
data keep their nulls, byte for byte: whatever a schema types as ``Any`` or as a ``dict``, such as JSON schemas, tools,
``metadata`` and ``chat_template_kwargs``. So do fields whose type gives null a meaning of its own, which is how msgspec
writes it: those that are ``UNSET`` by default.
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
"""Of a body with nulls: objects that hold one, and items of a list of objects. Each is looked at in the serving
process."""

_NULL = b"null"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])

Kinds = frozenset[type[msgspec.Struct]]


def without_nulls(data: bytes, kind: type[msgspec.Struct]) -> bytes:
    """A JSON object without the null fields of its own objects.

    Raises 400 for too many of them, and what msgspec raises for what is no object.
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
        """The value of a field that holds such an object, or a list of them, or something else."""
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
            raise invalid_request(
                f"The body has over {MAX_OBJECTS} objects, and nulls in them: leave those fields out."
            )


@functools.cache
def _shape(kinds: Kinds) -> tuple[dict[str, Kinds], frozenset[str]]:
    """Return the fields that hold structs in turn, and the fields in which null means something, of an object that may
    be any of these structs."""
    inner: dict[str, Kinds] = {}
    kept = set()
    for field in (field for kind in kinds for field in msgspec.structs.fields(kind)):
        if structs := frozenset(_structs(field.type)):
            inner[field.encode_name] = inner.get(field.encode_name, frozenset()) | structs
        if field.default is msgspec.UNSET:
            kept.add(field.encode_name)
    return inner, frozenset(kept)


def _structs(hint: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a value of this type may be, or an item of it where it is a list."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        yield from _structs(typing.get_args(hint)[0])
    elif origin in (Union, UnionType, list):
        for part in typing.get_args(hint):
            yield from _structs(part)
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
