"""The framing of WebSockets (RFC 6455), without I/O: messages out of frames, frames, and the handshake's response."""

from __future__ import annotations

import codecs
import logging
from collections import deque

from websockets import datastructures
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol

from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.http1 import Exchange

REASON = 123
"""Largest size of a close reason in bytes."""

protocol_log = logging.getLogger("omni_actors.server.websocket")
protocol_log.setLevel(logging.WARNING)  # websockets would log every opening and closing


class MessageProtocol(Protocol):
    """Builds messages from frames, one frame at a time, so that invalid UTF-8 fails the connection at the right place:
    frames after the invalid one in the same segment are no longer answered."""

    def __init__(self, most: int) -> None:
        super().__init__(Side.SERVER, max_size=most, logger=protocol_log)
        self.messages: deque[str | bytes] = deque()
        self._kind = Opcode.CONT
        self._parts = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def recv_frame(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CLOSE:
            self.current_size = None  # control frames may come between fragments (RFC 6455, 5.4), this one too
        super().recv_frame(frame)
        if self.state is not State.OPEN:
            return
        if opcode in (Opcode.TEXT, Opcode.BINARY):
            self._kind = opcode
        elif opcode is not Opcode.CONT:
            return
        is_text = self._kind is Opcode.TEXT
        text = self._decoder.decode(frame.data, frame.fin) if is_text else ""  # a decoding error closes with 1007
        if not frame.fin:
            self._parts += frame.data  # as bytes: texts of two letters each would take 30 × the memory
        elif not self._parts:
            self.messages.append(text if is_text else bytes(frame.data))
        else:
            self._parts += frame.data
            self.messages.append(self._parts.decode() if is_text else bytes(self._parts))
            self._parts = bytearray()

    def fail(self, code: int, reason: str = "") -> None:
        super().fail(code, reason)
        self._parts = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an unfinished message or frame."""
        return len(self._parts) + len(self.reader.buffer)


def message_frame(opcode: Opcode, data: bytes) -> bytes:
    """Return a whole message in one frame, not masked, which is the form for servers (RFC 6455, 5.2)."""
    size = len(data)
    if size < 126:
        return bytes((0x80 | opcode, size)) + data
    if size < 1 << 16:
        return b"%c\x7e%b%b" % (0x80 | opcode, size.to_bytes(2, "big"), data)
    return b"%c\x7f%b%b" % (0x80 | opcode, size.to_bytes(8, "big"), data)


def close_reason(reason: str) -> str:
    return reason.encode()[:REASON].decode(errors="ignore")


def handshake_response(exchange: Exchange) -> Response:
    """Return the response that accepts the WebSocket. Raises :class:`BadRequest` for an invalid handshake."""
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
    request = Request("/", datastructures.Headers(lines), exchange.method, f"HTTP/{exchange.http_version}")
    if request.headers.get_all("Sec-WebSocket-Version") not in ([], ["13"]):
        raise BadRequest(426, "The WebSocket version must be 13.")
    response = ServerProtocol(logger=protocol_log).accept(request)
    if response.status_code != 101:
        raise BadRequest(response.status_code, response.body.decode().partition("\n")[0])
    return response
