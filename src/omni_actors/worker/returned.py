"""Checks of the values that an adapter, an engine or a bridge returns, at the place of the return.

Each check looks at a value once. A value in breach of its method's contract raises :class:`WrongReturn`, which fails
the one request of the value: the message names the class, the method, the type of the value and the expected type, and
holds no values.
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
"""Exceptions for a value that has no form on the wire."""

_MISMATCH = re.compile(r"Expected `(.+)`, got `(.+?)`")


class WrongReturn(OutputError):
    """A method returned a value against its contract."""


def wrong(owner: object, method: str, got: str, expected: str) -> WrongReturn:
    """Return the error for a wrong result of ``owner.method``. ``got`` and ``expected`` are types or phrases, and no
    values."""
    return WrongReturn(f"{type(owner).__name__}.{method} returned {got}; expected {expected}")


def kind_of(value: object) -> str:
    """Return the type of a value in a word or two."""
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def sequence_of(owner: object, method: str, value: Any, expected: str = "a sequence of items") -> Sequence[Any]:
    """Return the value, if it is a sequence other than text."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return value
    raise wrong(owner, method, kind_of(value), expected)


def iterable_of(owner: object, method: str, value: Any, what: str, expected: str) -> Iterable[Any]:
    """Return the value, if it can be iterated and is not text. ``what`` says where the value was found."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping):
        return value
    raise wrong(owner, method, f"{what}{kind_of(value)}", expected)


def flag_of(owner: object, method: str, value: Any, meaning: str) -> bool:
    """Return the value, if it is ``True`` or ``False``. ``None``, from a forgotten ``return``, would otherwise count as
    ``False``."""
    if value is True or value is False:
        return bool(value)
    raise wrong(owner, method, kind_of(value), f"True or False ({meaning})")


def facts_of(owner: object, facts: Any, method: str = "load") -> dict[str, Any]:
    """Return the facts of a load for the serving process, if they are a dict by name of encodable values."""
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
"""Names of such facts whose values are whole numbers."""


def counters_of(owner: object, found: Any) -> dict[str, float]:
    """Return the result of ``counters``, if it is a dict of numbers by name."""
    if not isinstance(found, dict):
        raise wrong(owner, "counters", kind_of(found), "a dict of numbers by name")
    for name, value in found.items():
        if type(name) is not str or type(value) not in (int, float):
            raise wrong(owner, "counters", f"a dict whose {name!r} is {kind_of(value)}", "a number")
    return found


def usage_problem(usage: Any) -> tuple[str, str] | None:
    """Return (got, expected) for a wrong usage, else ``None``."""
    if type(usage) is not Usage:
        return kind_of(usage), "Usage"
    prompt, cached, written = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
    heard, spoken = usage.audio_input_s, usage.audio_output_s
    images, steps, skipped = usage.images, usage.steps, usage.skipped_steps
    if (
        type(prompt) is type(cached) is type(written) is type(images) is type(steps) is type(skipped) is int
        and type(heard) is type(spoken) is float
        and min(prompt, cached, written, images, steps, skipped, heard, spoken) >= 0
        and max(prompt, cached, written, images, steps, skipped) < 1 << 63
        and heard + spoken < _ENDLESS
    ):
        return None  # the usual case; the code below finds the mistake
    if (problem := struct_problem(usage, Usage)) is not None:
        return problem
    for name in usage.__struct_fields__:
        if not 0 <= getattr(usage, name) < _ENDLESS:  # also false for NaN
            return f"a Usage whose {name} is {getattr(usage, name)}", "a finite number, 0 or more"
    return None


def text_problem(text: Any, key: int) -> tuple[str, str] | None:
    """Return (got, expected) for a wrong text delta of request ``key``, else ``None``."""
    if (problem := struct_problem(text, TextDelta)) is not None:
        return problem
    return None if text.key == key else ("text of another request", _OWN_KEY)


def media_problem(media: Any, key: int) -> tuple[str, str] | None:
    """Return (got, expected) for a wrong piece of media of request ``key``, else ``None``."""
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
    if media.modality == "image":
        for name in ("index", "layer", "preview"):
            value = media.meta.get(name, 0)
            if type(value) is not int or value < 0:
                return f"a MediaChunk of an image whose meta['{name}'] is {kind_of(value)}", "a whole number"
    return None


_ENDLESS = float("inf")
_OWN_KEY = "the key of the request's Work"


def payload_problem(payload: Any) -> tuple[str, str] | None:
    """Return (got, expected) for a wrong payload, apart from its tensors, else ``None``."""
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
    """Return (got, expected) for a struct that its reader on the wire would refuse, else ``None``. Measured: 0.4 µs for
    a right struct."""
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
