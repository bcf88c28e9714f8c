"""Checks of what an adapter, an engine or a bridge gives back, made where it gives it.

Each check looks at a value once, as it is returned. One that breaks its method's contract raises :class:`WrongReturn`,
which fails the one request that it was made for: the message names the class, the method, what was returned and what
was expected, and holds no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.codec import encode
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.checks import OutputError

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding a value raises that has no form on the wire."""

_MISMATCH = re.compile(r"Expected `(.+)`, got `(.+?)`")


class WrongReturn(OutputError):
    """A method returned what its contract does not allow."""


def wrong(owner: object, method: str, got: str, expected: str) -> WrongReturn:
    """The error for what ``owner.method`` returned. ``got`` and ``expected`` are types or phrases, and no values."""
    return WrongReturn(f"{type(owner).__name__}.{method} returned {got}; expected {expected}")


def kind_of(value: object) -> str:
    """Return the type of a value in a word or two."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def sequence_of(owner: object, method: str, value: Any, expected: str = "a sequence of items") -> Sequence[Any]:
    """The value, if it is a sequence and no text."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return value
    raise wrong(owner, method, kind_of(value), expected)


def iterable_of(owner: object, method: str, value: Any, what: str, expected: str) -> Iterable[Any]:
    """The value, if it can be iterated and is no text. ``what`` says where it was found."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping):
        return value
    raise wrong(owner, method, f"{what}{kind_of(value)}", expected)


def flag_of(owner: object, method: str, value: Any, meaning: str) -> bool:
    """The value, if it is ``True`` or ``False``. ``None``, of a forgotten ``return``, would else count as ``False``."""
    if value is True or value is False:
        return bool(value)
    raise wrong(owner, method, kind_of(value), f"True or False ({meaning})")


def facts_of(owner: object, facts: Any, method: str = "load") -> dict[str, Any]:
    """Return what loading tells the serving process, if it is a dict by name of what can be sent."""
    if not isinstance(facts, dict):
        raise wrong(owner, method, kind_of(facts), "a dict of what the serving process should know")
    for name, value in facts.items():
        if type(name) is not str:
            raise wrong(owner, method, f"a dict with the key {name!r}", "names as keys")
        try:
            encode(value)
        except UNENCODABLE as error:
            raise wrong(owner, method, f"a dict whose '{name}' cannot be sent ({error})", "plain builtins") from None
        if name in _WHOLE and type(value) is not int:
            raise wrong(owner, method, f"a dict whose '{name}' is {kind_of(value)}", "int")
    return facts


_WHOLE = frozenset({"kv_blocks", "block_size", "max_model_len", "sample_rate", "channels"})
"""Names in what loading says whose values are whole numbers."""


def counters_of(owner: object, found: Any) -> dict[str, float]:
    """Return the result of ``counters``, if it is a dict of numbers by name."""
    if not isinstance(found, dict):
        raise wrong(owner, "counters", kind_of(found), "a dict of numbers by name")
    for name, value in found.items():
        if type(name) is not str or type(value) not in (int, float):
            raise wrong(owner, "counters", f"a dict whose {name!r} is {kind_of(value)}", "a number")
    return found


def usage_problem(usage: Any) -> tuple[str, str] | None:
    """Say what is wrong with a usage, as (got, expected)."""
    if type(usage) is not Usage:
        return kind_of(usage), "Usage"
    prompt, cached, written = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    heard, spoken = usage.audio_input_s, usage.audio_output_s
    if (
        type(prompt) is type(cached) is type(written) is int
        and type(heard) is type(spoken) is float
        and min(prompt, cached, written, heard, spoken) >= 0
        and max(prompt, cached, written) < 1 << 63
        and heard + spoken < _ENDLESS
    ):
        return None  # nearly always: the rest says what is wrong
    if (problem := struct_problem(usage, Usage)) is not None:
        return problem
    for name in usage.__struct_fields__:
        if not 0 <= getattr(usage, name) < _ENDLESS:  # not a number is neither
            return f"a Usage whose {name} is {getattr(usage, name)}", "a finite number, 0 or more"
    return None


def text_problem(text: Any, key: int) -> tuple[str, str] | None:
    """Say what is wrong with a delta of text for request ``key``, as (got, expected)."""
    if (problem := struct_problem(text, TextDelta)) is not None:
        return problem
    return None if text.key == key else ("text of another request", _OWN_KEY)


def media_problem(media: Any, key: int) -> tuple[str, str] | None:
    """Say what is wrong with a piece of media for request ``key``, as (got, expected)."""
    if not isinstance(media, MediaChunk):
        return kind_of(media), "MediaChunk"
    if not isinstance(media.data, bytes):
        return f"a MediaChunk whose data is {kind_of(media.data)}", "bytes"
    if (problem := struct_problem(msgspec.structs.replace(media, data=b""), MediaChunk)) is not None:
        return problem
    if media.key != key:
        return "media of another request", _OWN_KEY
    if media.modality == "audio":
        for name in ("sample_rate", "channels"):
            value = media.meta.get(name)
            if type(value) is not int or value < 1:
                return f"a MediaChunk of audio whose meta['{name}'] is {kind_of(value)}", "a whole number above 0"
        if len(media.data) % (2 * media.meta["channels"]):
            return "audio that is not whole frames", "2 bytes for each sample of each channel"
    return None


_ENDLESS = float("inf")
_OWN_KEY = "the key of the request's Work"


def payload_problem(payload: Any) -> tuple[str, str] | None:
    """Say what is wrong with a payload, beside its tensors, as (got, expected)."""
    if not isinstance(payload, Payload):
        return kind_of(payload), "Payload"
    if type(payload.kind) is not str:
        return f"a Payload whose kind is {kind_of(payload.kind)}", "str"
    if not isinstance(payload.tensors, Mapping):
        return f"a Payload whose tensors are {kind_of(payload.tensors)}", "a mapping of arrays by name"
    try:
        _META.decode(encode(payload.meta))
    except (msgspec.ValidationError, *UNENCODABLE) as error:
        return f"a Payload whose meta cannot be sent ({error})", "a dict of plain builtins by name"
    return None


_META = msgspec.msgpack.Decoder(dict[str, Any])


def struct_problem(value: Any, kind: type[msgspec.Struct]) -> tuple[str, str] | None:
    """Say what is wrong with a struct that is to go on the wire, as (got, expected): whatever its reader would refuse.
    Measured: 0.4 µs for a right one."""
    if not isinstance(value, kind):
        return kind_of(value), kind.__name__
    try:
        _decoder(kind).decode(encode(value))
    except (msgspec.ValidationError, *UNENCODABLE):
        pass
    else:
        return None
    for field in msgspec.structs.fields(kind):
        it = getattr(value, field.encode_name)
        try:
            msgspec.msgpack.decode(encode(it), type=field.type)
        except msgspec.ValidationError as error:
            if (told := _MISMATCH.match(str(error))) is None:
                return f"a {kind.__name__} whose {field.name} is wrong ({error})", kind.__name__
            inside = "holds" if "$" in str(error) else "is"
            got = told[2] if inside == "holds" else kind_of(it)
            return f"a {kind.__name__} whose {field.name} {inside} {got}", told[1].replace("int | null", "int")
        except UNENCODABLE:
            return f"a {kind.__name__} whose {field.name} is {kind_of(it)}", _name_of(field.type)
    return f"a {kind.__name__} that cannot be sent", kind.__name__


@lru_cache(maxsize=64)
def _decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _name_of(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
