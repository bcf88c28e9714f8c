"""Parsing of large JSON bodies: a chat request of tens of megabytes is one huge base64 string with a little JSON.

A JSON parser would copy and check the huge string in one call of 50 ms and more. So the long strings are cut out first
(a search for a quote is fast), the rest is parsed quickly, and the media among the strings are decoded piece by piece.
A long string that is not a medium is put back unchanged.
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
from omni_actors.media.questions import How
from omni_actors.protocol.errors import OmniError, invalid_request, too_large
from omni_actors.protocol.nesting import too_deep

LONG = 64 << 10
"""Bytes of a string from which on the string is cut out."""
_STEP = 1 << 20
"""Characters of base64 that are decoded at once, in 1.5 ms."""
_ESCAPES = ((b"\\/", b"/"), (b"\\u002B", b"+"), (b"\\u002b", b"+"), (b"\\u002F", b"/"), (b"\\u002f", b"/"))
"""The escapes of base64 characters by the JSON writers of PHP and .NET."""
_BREAKS = ((b"\\r", b""), (b"\\n", b""), (b"\r", b""), (b"\n", b""))
"""Line breaks, as in unparsed long strings and as in parsed strings."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


_URLS = {"audio_url": "audio", "image_url": "image", "video_url": "video"}
"""The modality of each content part that names a medium by URL (vLLM's extensions of OpenAI's ``image_url``)."""
_LOW_DETAIL = 512
"""The side in pixels of the square into which OpenAI's ``"detail": "low"`` shrinks an image."""
_MAX_URL = 8 << 10
_MOST = 2**53
"""The bound of numbers that are passed on, since numbers in JSON have no bound."""
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A medium in a chat body: base64 (``text``) with its declared type (``hint``), or a ``url``.

    ``param`` is the path of the medium's field.
    """

    part: dict[str, Any]
    modality: str
    param: str
    how: How
    text: memoryview = _NOTHING
    hint: str | None = None
    url: str | None = None


class ChatBody:
    """A parsed chat body. ``parts`` are its media in order, not decoded; :meth:`render` returns the JSON without
    media."""

    def __init__(
        self,
        body: bytes | bytearray,
        limits: Limits,
        modalities: tuple[str, ...] | None = None,
        clip: str | None = None,
        reference_rate: int | None = None,
        alpha: bool = False,
    ) -> None:
        """Parse a body.

        Raises :class:`OmniError`: 400 for a body that is not a JSON object, and for a message's medium of a modality
        outside ``modalities``; 413 for too many or too large media.
        """
        self._limits = limits
        self._modalities = modalities
        self._clip = clip
        self._reference = How(rate=reference_rate)
        self._alpha = alpha
        self._nonce = secrets.token_hex(16)
        skeleton, self._long = _cut(body, self._nonce)
        if len(skeleton) > limits.max_json_bytes:
            raise self._too_large()
        try:
            self._tree = msgspec.json.decode(skeleton)
        except RecursionError:
            raise too_deep(skeleton) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise invalid_request("The body is not valid JSON.", code="invalid_json") from None
        if not isinstance(self._tree, dict):
            raise invalid_request("The body must be a JSON object.", code="invalid_json")
        self._video = _video_kwargs(self._tree)
        self.parts = list(self._find())
        if len(self.parts) > limits.max_clips_per_body:
            raise invalid_request(f"The request has more than {limits.max_clips_per_body} media parts.", "messages")

    def render(self) -> bytes:
        """Return the body as small JSON. Call it once."""
        for index, part in enumerate(self.parts):
            part.part.clear()
            part.part.update(type=part.modality, index=index)
        text: bytes = msgspec.json.encode(self._tree)
        mark = re.compile(rb'"%s:(\d+)"' % self._nonce.encode())
        size = len(text) + sum(len(self._long[int(number)]) for number in mark.findall(text))
        if size > self._limits.max_json_bytes:
            raise self._too_large()
        return mark.sub(lambda found: b'"' + self._long[int(found[1])] + b'"', text)

    def _find(self) -> Iterator[MediaPart]:
        """Find the medium of a transcription's or a speech's JSON body, or the parts of a chat."""
        alone = self._tree.get(self._clip) if self._clip is not None else None
        if self._clip == "input_audio" and isinstance(alone, dict):
            yield self._input_audio(alone, alone, "input_audio")
        elif self._clip == "ref_audio" and alone is not None:
            yield self._clip_to_clone(alone)
        elif self._clip == "images":
            yield from self._pictures()
        messages = self._tree.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            content = message.get("content") if isinstance(message, dict) else None
            for j, part in enumerate(content if isinstance(content, list) else ()):
                kind = part.get("type") if isinstance(part, dict) else None
                path = f"messages[{i}].content[{j}]"
                if kind == "input_audio":
                    self._takes("audio", path)
                    _only(part, ("type", kind), path)
                    yield self._input_audio(part, part.get(kind), f"{path}.{kind}")
                elif isinstance(kind, str) and kind in _URLS:
                    self._takes(_URLS[kind], path)
                    _only(part, ("type", kind), path)
                    yield self._by_url(part, part.get(kind), _URLS[kind], f"{path}.{kind}")
                elif kind in _URLS.values():
                    # The form that this server uses inside: from outside it would point at another part's medium.
                    raise invalid_request(f"Unknown content part type '{kind}'.", f"{path}.type")

    def _takes(self, modality: str, path: str) -> None:
        if self._modalities is not None and modality not in self._modalities:
            raise invalid_request(f"This model takes no {modality}.", f"{path}.type", "unsupported_modality")

    def _input_audio(self, part: dict[str, Any], inner: Any, path: str) -> MediaPart:
        param = f"{path}.data"
        text, hint = self._base64(_string(inner, "data", param), param)
        _only(inner, ("data", "format"), path)
        format = inner.get("format")
        if format is not None and not isinstance(format, str):
            raise invalid_request("The audio format must be a string.", f"{path}.format")
        return MediaPart(part, "audio", param, How(), text, f"audio/{format}" if format else hint)

    def _clip_to_clone(self, value: Any) -> MediaPart:
        """Find the clip of a speech body, base64 or a URL in one text."""
        param = "ref_audio"
        if not isinstance(value, str):
            raise invalid_request("'ref_audio' must be a string: base64, or a data, https or http URL.", param)
        holder: dict[str, Any] = {}
        self._tree[param] = holder
        scheme = _SCHEME.match(value) if self._number(value) is None else None
        if scheme is not None and scheme[0].lower() != "data:":
            return _link(holder, "audio", param, self._reference, value)
        text, hint = self._base64(value, param)
        return MediaPart(holder, "audio", param, self._reference, text, hint)

    def _pictures(self) -> Iterator[MediaPart]:
        """Find the pictures of a body with pictures to edit, and behind them its mask."""
        pictures = self._tree.get("images")
        for place, part in enumerate(pictures if isinstance(pictures, list) else ()):
            yield self._picture(part, f"images[{place}]")
        if (mask := self._tree.get("mask")) is not None:
            yield self._picture(mask, "mask")

    def _picture(self, part: Any, path: str) -> MediaPart:
        param = f"{path}.image_url"
        if not isinstance(part, dict):
            raise invalid_request(f"'{path}' must be an object with 'image_url'.", path, "invalid_value")
        if part.get("file_id") is not None:
            message = "Files are not kept: give the picture as 'image_url'."
            raise invalid_request(message, f"{path}.file_id", "unsupported_parameter")
        value = _string(part, "image_url", param)
        _only(part, ("image_url", "file_id"), path)
        return self._at_url(part, "image", param, How(alpha=True), value)

    def _by_url(self, part: dict[str, Any], inner: Any, modality: str, path: str) -> MediaPart:
        param = f"{path}.url"
        value = _string(inner, "url", param)
        how = self._video if modality == "video" else How(alpha=self._alpha)
        _only(inner, ("url", "detail") if modality == "image" else ("url",), path)
        if (detail := inner.get("detail")) is not None:
            if detail not in ("auto", "low", "high"):
                raise invalid_request("The detail is 'auto', 'low' or 'high'.", f"{path}.detail", "invalid_value")
            how = How(within=_LOW_DETAIL if detail == "low" else None, alpha=self._alpha)
        return self._at_url(part, modality, param, how, value)

    def _at_url(self, part: dict[str, Any], modality: str, param: str, how: How, value: str) -> MediaPart:
        """Return the medium of a data URL, or of a URL to fetch."""
        if value[:5].lower() == "data:" or self._number(value) is not None:
            text, hint = self._base64(value, param, url=True)
            return MediaPart(part, modality, param, how, text, hint)
        return _link(part, modality, param, how, value)

    def _base64(self, value: str, param: str, url: bool = False) -> tuple[memoryview, str | None]:
        """Return the base64 of a field, and the declared type of a data URL (RFC 2397)."""
        number = self._number(value)
        text = self._long[number] if number is not None else memoryview(value.encode())
        start = bytes(text[:1024])
        if start[:5].lower() == b"data:":
            head, comma, _ = start.partition(b",")
            if not comma or not head.lower().endswith(b";base64"):
                raise invalid_request("A data URL must be 'data:<type>;base64,<data>'.", param, "invalid_url")
            declared = head[5 : -len(b";base64")].replace(b"\\/", b"/").decode(errors="replace")
            return text[len(head) + 1 :], declared or None
        if url:
            raise invalid_request("This URL must begin with 'data:', 'https:' or 'http:'.", param, "invalid_url")
        if _SCHEME.match(start.decode("latin-1")) is not None:
            raise invalid_request(
                "This field takes base64 or a data URL; no other URL is allowed.", param, "invalid_url"
            )
        return text, None

    def _number(self, value: str) -> int | None:
        return int(value[len(self._nonce) + 1 :]) if value.startswith(self._nonce) else None

    def _too_large(self) -> OmniError:
        return too_large(f"The body without its media is larger than {self._limits.max_json_bytes >> 20} MiB.")


def _only(given: dict[str, Any], known: tuple[str, ...], path: str) -> None:
    """Refuse unknown fields of a part. A null counts as absent.

    The part is taken out of the body, so the check of the rest of the body does not see the part's fields.
    """
    for name, value in given.items():
        if name not in known and value is not None:
            param = f"{path}.{name[:100]}"
            raise invalid_request(f"Unknown field '{param}'.", param, "unknown_parameter")


def _link(part: dict[str, Any], modality: str, param: str, how: How, url: str) -> MediaPart:
    """Return the medium of a URL. Raises 400 for a scheme other than http and https."""
    if len(url) > _MAX_URL:
        raise invalid_request(f"The URL has more than {_MAX_URL} characters.", param, "invalid_url")
    if url.partition(":")[0].lower() not in ("http", "https"):
        raise invalid_request("This URL must begin with 'data:', 'https:' or 'http:'.", param, "invalid_url")
    return MediaPart(part, modality, param, how, url=url)


def _string(inner: Any, field: str, param: str) -> str:
    value = inner.get(field) if isinstance(inner, dict) else None
    if not isinstance(value, str):
        raise invalid_request(f"The part needs the string '{field}'.", param)
    return value


def _video_kwargs(tree: dict[str, Any]) -> How:
    """Return how the body wants its videos decoded.

    Values of a wrong type or out of bounds are left to the check of the rest of the body.
    """
    given = tree.get("mm_processor_kwargs")
    kwargs = given if isinstance(given, dict) else {}
    fps, most = kwargs.get("fps"), kwargs.get("max_frames")
    return How(
        fps=float(fps) if isinstance(fps, int | float) and fps is not True and 0 < fps <= _MOST else None,
        max_frames=most if isinstance(most, int) and most is not True and 0 < most <= _MOST else None,
        sound=True in (kwargs.get("use_audio_in_video"), tree.get("use_audio_in_video")),
    )


def long_strings(body: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Find the (start, end) of the contents of long strings in valid JSON.

    Every string of at least :data:`LONG` bytes without a quote is found. Each window is searched from its end
    backwards, so that the search moves in big steps however many quotes a window has.
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
    """Whether a quote begins a string. A quote behind an escape is text; an ending quote is followed by structure."""
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
    """Decode strict base64 in slices. Raises :class:`OmniError` (400).

    Line breaks (MIME wraps lines), missing padding and JSON's escapes of base64 characters are accepted. A blank is
    refused: after the decoding of a form a blank stands for a ``+``, and without the blank the rest would be other
    data.
    """
    held = b""
    for at in range(0, len(text), _STEP):
        held += bytes(text[at : at + _STEP])
        for escape, character in _ESCAPES + _BREAKS:
            held = held.replace(escape, character)
        if b" " in held:
            message = (
                "This base64 contains spaces. They may have been '+' before a form was decoded: send each '+' as '+'."
            )
            raise invalid_request(message, param, "invalid_base64")
        if at + _STEP >= len(text):
            held = held.rstrip(b"=")
            held += b"=" * (-len(held) % 4)
            ready = len(held)
        else:
            ready = max(0, (len(held) - 5) // 4 * 4)  # The end may be the beginning of an escape, or of the padding.
        try:
            into(binascii.a2b_base64(held[:ready], strict_mode=True))
        except binascii.Error:
            raise invalid_request("This is not valid base64.", param, "invalid_base64") from None
        held = held[ready:]
        yield
