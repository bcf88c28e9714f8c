"""Server-sent events, written with one encode or one splice per delta."""

from __future__ import annotations

import base64
import logging
import math
from typing import Any

import msgspec

from omni_actors.entrypoints.openai.errors import error_body, internal_error
from omni_actors.protocol.errors import ErrorInfo, OmniError

UNBUFFERED = ("x-accel-buffering", "no")
"""Of every stream: nginx, which else holds an answer back until a buffer of it is full, hands it on as it comes."""

HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    UNBUFFERED,
]
DONE = b"data: [DONE]\n\n"

log = logging.getLogger("omni_actors.http")

encode = msgspec.json.encode


def event(data: bytes) -> bytes:
    """One event of encoded JSON (which has no line breaks of its own)."""
    return b"data: " + data + b"\n\n"


def error_event(info: ErrorInfo) -> bytes:
    """The in-band error. Nothing follows it: the response then ends abnormally, never with a success marker."""
    return event(error_body(info))


class Base64:
    """Base64 of a byte stream, piece by piece. The pieces joined are the encoding of the whole, and each piece alone
    decodes to whole frames of ``frame`` bytes: clients may join before decoding or decode before joining.

    A few bytes are held back; no call works on more than the piece that it is given.
    """

    def __init__(self, frame: int = 1) -> None:
        self._unit = math.lcm(3, frame)
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        data = self._rest + data
        cut = len(data) - len(data) % self._unit
        self._rest = data[cut:]
        return base64.b64encode(data[:cut])

    def finish(self) -> bytes:
        rest, self._rest = self._rest, b""
        return base64.b64encode(rest)


def last_words(error: Exception, request_id: str) -> bytes:
    """A failure while the answer is being sent, as the event that says so. What is unexpected is logged with its
    traceback; the client gets its id."""
    if isinstance(error, OmniError):
        log.info("failed while its answer was being sent: %s", error.info.message)
        return error_event(error.info)
    log.error("unexpected failure while the answer was being sent", exc_info=error)
    return error_event(internal_error(request_id))


class Template:
    """Chunks of one streamed completion: the constant parts are encoded once, each delta is one join."""

    def __init__(
        self, id: str, object: str, created: int, model: str, *, usage: bool, modality: str | None = None
    ) -> None:
        """``usage`` says that a last chunk has it, and that those before have a null in its place. ``modality`` says in
        each chunk what it brings: vLLM-Omni's clients read that, and OpenAI's do not know it."""
        fields = {"id": id, "object": object, "created": created, "model": model}
        head = encode(fields if modality is None else {**fields, "modality": modality})[:-1]
        self._head = b"data: " + head + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: Any = None) -> bytes:
        """A chunk of one choice, with the usage so far where each has it."""
        if usage is None:
            return b"".join((self._head, choice, self._tail))
        return b"".join((self._head, choice, b'],"usage":', encode(usage), b"}\n\n"))

    def around(self, choice: bytes) -> bytes:
        """A chunk with the place ``%b`` of a choice left open, for the ``%`` operator: one splice per delta."""
        before, _, behind = choice.partition(b"%b")
        return b"%b%%b%b" % ((self._head + before).replace(b"%", b"%%"), (behind + self._tail).replace(b"%", b"%%"))

    def usage(self, usage: Any) -> bytes:
        """The last chunk, with the usage and no choice."""
        return self.chunk(b"", usage)
