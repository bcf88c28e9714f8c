"""Big JSON bodies: a chat request of tens of megabytes is one huge base64 string with a little JSON around it.

A JSON parser would copy and check that string in one call of 50 ms and more. So the long strings are cut out first (a
search for a quote is fast), the rest is parsed in no time, and the audio among the strings is decoded piece by piece. A
long string that is not audio is put back as it was.
"""

from __future__ import annotations

import binascii
import re
import secrets
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_actors.media.limits import Limits
from omni_actors.protocol.errors import OmniError, invalid_request, too_large

LONG = 64 << 10
"""Strings from so many bytes on are cut out."""
_STEP = 1 << 20
"""Characters of base64 that are decoded at once (1.5 ms)."""
_ESCAPES = ((b"\\/", b"/"), (b"\\u002B", b"+"), (b"\\u002b", b"+"), (b"\\u002F", b"/"), (b"\\u002f", b"/"))
"""How JSON writers of PHP and .NET write characters of base64."""
_BREAKS = ((b"\\r", b""), (b"\\n", b""))


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Audio in a chat body: ``text`` is its base64, ``param`` the path of the field, ``hint`` its declared type."""

    part: dict[str, Any]
    text: memoryview
    param: str
    hint: str | None


class ChatBody:
    """A parsed chat body. ``parts`` are its audio parts in order; :meth:`render` is the JSON without them."""

    def __init__(self, body: bytes | bytearray, limits: Limits) -> None:
        """Raises :class:`OmniError`: 400 for what is not a JSON object, 413 for too much of it."""
        self._limits = limits
        self._nonce = secrets.token_hex(16)
        skeleton, self._long = _cut(body, self._nonce)
        if len(skeleton) > limits.max_json_bytes:
            raise self._too_large()
        try:
            self._tree = msgspec.json.decode(skeleton)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise invalid_request("The body is not valid JSON.", code="invalid_json") from None
        if not isinstance(self._tree, dict):
            raise invalid_request("The body must be a JSON object.", code="invalid_json")
        self.parts = list(self._find())
        if len(self.parts) > limits.max_clips_per_body:
            raise invalid_request(f"The request has more than {limits.max_clips_per_body} audio parts.", "messages")

    def render(self) -> bytes:
        """The body as small JSON; call it once, when the parts' texts are no longer needed."""
        for index, part in enumerate(self.parts):
            part.part.clear()
            part.part.update(type="audio", index=index)
        text: bytes = msgspec.json.encode(self._tree)
        mark = re.compile(rb'"%s:(\d+)"' % self._nonce.encode())
        size = len(text) + sum(len(self._long[int(number)]) for number in mark.findall(text))
        if size > self._limits.max_json_bytes:
            raise self._too_large()
        return mark.sub(lambda found: b'"' + self._long[int(found[1])] + b'"', text)

    def _find(self) -> Iterator[AudioPart]:
        """Chat's parts, and the one of a transcription's JSON body."""
        if isinstance(alone := self._tree.get("input_audio"), dict):
            yield self._audio(alone, alone, "data", "input_audio")
        messages = self._tree.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            content = message.get("content") if isinstance(message, dict) else None
            for j, part in enumerate(content if isinstance(content, list) else ()):
                kind = part.get("type") if isinstance(part, dict) else None
                path = f"messages[{i}].content[{j}]"
                if kind in ("input_audio", "audio_url"):
                    _only(part, ("type", kind), path)
                    yield self._audio(
                        part, part.get(kind), "data" if kind == "input_audio" else "url", f"{path}.{kind}"
                    )
                elif kind == "audio":
                    # The form that this server uses inside: from outside it would point at another part's sound.
                    raise invalid_request("Unknown content part type 'audio'.", f"{path}.type")

    def _audio(self, part: dict[str, Any], inner: Any, field: str, path: str) -> AudioPart:
        param = f"{path}.{field}"
        value = inner.get(field) if isinstance(inner, dict) else None
        if not isinstance(value, str):
            raise invalid_request(f"The audio part needs the string '{field}'.", param)
        _only(inner, (field, "format"), path)
        format = inner.get("format")
        if format is not None and not isinstance(format, str):
            raise invalid_request("The audio format must be a string.", f"{path}.format")
        return AudioPart(part, *self._base64(value, param, field == "url"), _hint(format))

    def _base64(self, value: str, param: str, url: bool) -> tuple[memoryview, str]:
        number = self._number(value)
        text = self._long[number] if number is not None else memoryview(value.encode())
        start = bytes(text[:1024])
        if start[:5].lower() == b"data:":
            head, comma, _ = start.partition(b",")
            if not comma or not head.lower().endswith(b";base64"):
                raise invalid_request("A data URL must be 'data:<type>;base64,<data>'.", param)
            text = text[len(head) + 1 :]
        elif url:
            raise invalid_request("Only data URLs are accepted here; this server fetches nothing.", param)
        return text, param

    def _number(self, value: str) -> int | None:
        return int(value[len(self._nonce) + 1 :]) if value.startswith(self._nonce) else None

    def _too_large(self) -> OmniError:
        return too_large(f"The body without its audio is larger than {self._limits.max_json_bytes >> 20} MiB.")


def _only(given: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    """What is taken out of the body is not seen by those who check the rest: refuse here what would be dropped."""
    for name in given:
        if name not in known:
            param = f"{path}.{name[:100]}"
            raise invalid_request(f"Unknown field '{param}'.", param, "unknown_parameter")


def _hint(format: str | None) -> str | None:
    return f"audio/{format}" if format else None


def long_strings(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """(start, end) of the long strings' contents in valid JSON.

    Every string of at least :data:`LONG` bytes without a quote is found. Each window is searched from its end
    backwards, so that it is left in big steps however many quotes it has.
    """
    at = 0
    while at + LONG <= len(body):
        quote = body.rfind(b'"', at, at + LONG)
        if quote >= 0:
            at = quote + 1
            continue
        end = body.find(b'"', at + LONG)
        if end < 0:
            return
        if _opens(body, at - 1) and body[end - 1 : end] != b"\\":
            yield at, end
        at = end + 1


def _opens(body: bytes | bytearray, quote: int) -> bool:
    """Whether the quote there begins a string: behind an escape it is text, and behind an ending quote is structure."""
    if quote < 0 or body[quote - 1 : quote] == b"\\":
        return False
    return body[quote + 1] not in b" \t\r\n:,]}"


def _cut(body: bytes | bytearray, nonce: str) -> tuple[bytes, dict[int, memoryview]]:
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    long: dict[int, memoryview] = {}
    at = 0
    for start, end in long_strings(body):
        pieces += [view[at:start], f"{nonce}:{len(long)}".encode()]
        long[len(long)] = view[start:end]
        at = end
    pieces.append(view[at:])
    return b"".join(pieces), long


def decode_base64(text: memoryview, into: Callable[[bytes], Any], param: str) -> Generator[None, None, None]:
    """Strict base64 in slices; line breaks, missing padding and JSON's escapes of its alphabet are forgiven.

    Raises :class:`OmniError` (400).
    """
    held = b""
    for at in range(0, len(text), _STEP):
        held += bytes(text[at : at + _STEP])
        for escape, character in _ESCAPES + _BREAKS:
            held = held.replace(escape, character)
        held = b"".join(held.split())
        if at + _STEP >= len(text):
            held = held.rstrip(b"=")
            held += b"=" * (-len(held) % 4)
            ready = len(held)
        else:
            ready = max(0, (len(held) - 5) // 4 * 4)  # The end may be the beginning of an escape, or of the padding.
        try:
            into(binascii.a2b_base64(held[:ready], strict_mode=True))
        except binascii.Error:
            raise invalid_request("The audio is not valid base64.", param, "invalid_base64") from None
        held = held[ready:]
        yield
