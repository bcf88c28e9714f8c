"""Server-sent events, with one encoding or one splice per delta."""

from __future__ import annotations

import base64
import logging
import math
from typing import Any

import msgspec

from omni_actors.entrypoints.openai.errors import error_body, internal_error
from omni_actors.protocol.errors import ErrorInfo, OmniError

UNBUFFERED = ("x-accel-buffering", "no")
"""Header of every stream: without it, nginx would hold the response back until a buffer is full."""

HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    UNBUFFERED,
]
DONE = b"data: [DONE]\n\n"

log = logging.getLogger("omni_actors.http")

encode = msgspec.json.encode


def event(data: bytes) -> bytes:
    """Return one event of encoded JSON, which contains no line breaks."""
    return b"data: " + data + b"\n\n"


def error_event(info: ErrorInfo) -> bytes:
    """Return an error as an event. Nothing follows: the response then ends abnormally, never with a success marker."""
    return event(error_body(info))


class Base64:
    """Base64 of a byte stream, piece by piece. The joined pieces are the encoding of the whole, and each piece alone
    decodes to whole frames of ``frame`` bytes: clients may join before decoding or decode before joining.

    A few bytes are held back; no call works on more than its own piece.
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
    """Return the event for a failure during the response. An unexpected failure is logged with its traceback, and the
    client gets the request id."""
    if isinstance(error, OmniError):
        log.info("failed while its answer was being sent: %s", error.info.message)
        return error_event(error.info)
    log.error("unexpected failure while the answer was being sent", exc_info=error)
    return error_event(internal_error(request_id))


class Template:
    """Chunks of one streamed completion: the constant parts are encoded once, and each delta is one join."""

    def __init__(
        self, id: str, object: str, created: int, model: str, *, usage: bool, modality: str | None = None
    ) -> None:
        """Encode the constant parts.

        With ``usage``, a last chunk has the usage and earlier chunks have a null. ``modality`` is put into each chunk:
        vLLM-Omni's clients read it, and OpenAI's ignore it.
        """
        fields = {"id": id, "object": object, "created": created, "model": model}
        head = encode(fields if modality is None else {**fields, "modality": modality})[:-1]
        self._head = b"data: " + head + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if usage else b"]}\n\n"

    def chunk(self, choice: bytes, usage: Any = None) -> bytes:
        """Return a chunk of one choice, with the usage so far if each chunk has it."""
        if usage is None:
            return b"".join((self._head, choice, self._tail))
        return b"".join((self._head, choice, b'],"usage":', encode(usage), b"}\n\n"))

    def around(self, choice: bytes) -> bytes:
        """Return a chunk with a ``%b`` in its choice left open for the ``%`` operator: one splice per delta."""
        before, _, behind = choice.partition(b"%b")
        return b"%b%%b%b" % ((self._head + before).replace(b"%", b"%%"), (behind + self._tail).replace(b"%", b"%%"))

    def usage(self, usage: Any) -> bytes:
        """Return the last chunk, with the usage and no choice."""
        return self.chunk(b"", usage)
