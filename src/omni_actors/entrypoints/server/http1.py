"""One HTTP request with its response, and the response's format on the wire (RFC 9112)."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

from omni_actors.entrypoints.server.errors import BadRequest, ErrorBody
from omni_actors.entrypoints.server.parser import Headers, RequestParser
from omni_actors.entrypoints.server.transport import Transport

_NO_BODY = frozenset({204, 304})

_FURTHER = {
    426: b"upgrade: websocket\r\nsec-websocket-version: 13\r\n",
    503: b"retry-after: 1\r\n",
}
"""Further headers of refusals, by status."""


def _start_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_START_LINES = {status.value: _start_line(status) for status in HTTPStatus}


class DateLine:
    """The header ``Date``, rendered once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def __call__(self) -> bytes:
        now = int(time.time())
        if self._second != now:
            self._second = now
            self._line = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._line


class HttpServer(Protocol):
    """The part of a server that an exchange uses."""

    @property
    def scheme(self) -> str: ...

    @property
    def draining(self) -> bool: ...

    @property
    def date_line(self) -> DateLine: ...


class HttpConnection(Protocol):
    """The part of a connection that an exchange uses."""

    @property
    def address(self) -> tuple[str, int | None]: ...

    @property
    def client(self) -> tuple[str, int] | None: ...

    @property
    def server(self) -> HttpServer: ...

    @property
    def transport(self) -> Transport: ...

    async def send(self, data: bytes) -> None: ...

    async def fill(self) -> None: ...


class Exchange:
    """One HTTP request and its response.

    ``path`` is percent-decoded, ``query`` is raw, header names are lower-case. The handler runs in a cancel scope that
    is cancelled when its client leaves, stops reading, or breaks the protocol; no method raises for these. A response
    is one :meth:`respond`, or :meth:`start`, any number of :meth:`write`, and :meth:`finish`. A handler that returns in
    between leaves the response unfinished, and the client sees an abnormal end.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_left",
        "_parser",
        "finished",
        "headers",
        "http_version",
        "keep_alive",
        "method",
        "path",
        "query",
        "started",
        "target",
    )

    def __init__(self, connection: HttpConnection, parser: RequestParser) -> None:
        self._connection = connection
        self._parser = parser
        self.method = parser.method
        self.http_version = parser.version
        self.headers = parser.headers
        self.target, self.query = parser.path, parser.query
        path = self.target.decode("ascii")
        self.path = unquote(path) if "%" in path else path
        self.keep_alive = parser.keep_alive
        self.started = False
        self.finished = False
        self._chunked = False
        self._left: int | None = None

    @property
    def client(self) -> tuple[str, int] | None:
        """Address and port of the client; ``None`` over a unix socket."""
        return self._connection.client

    @property
    def user(self) -> int | None:
        """The client's user id, over a unix socket."""
        return self._connection.transport.user

    @property
    def server(self) -> tuple[str, int | None]:
        return self._connection.address

    @property
    def scheme(self) -> str:
        return self._connection.server.scheme

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection marks the end of the response (HTTP/1.0 without a length)."""
        return not self._chunked and self._left is None

    @property
    def received(self) -> bool:
        """Whether the whole body has arrived: :meth:`receive` has returned all of it or can do so without waiting."""
        return self._parser.complete

    async def receive(self) -> bytes:
        """Return the next piece of the body, ``b""`` at its end. The first call sends ``100 Continue`` to a client that
        waits for it. There is no deadline."""
        parser = self._parser
        while not parser.body:
            if parser.complete:
                return b""
            if parser.expects:
                parser.expects = False
                if not self.started:
                    await self._connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._connection.fill()
        pieces, parser.body = parser.body, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def respond(self, status: int, headers: Headers, body: bytes = b"") -> Awaitable[None]:
        """Send the whole response in one write."""
        head = self._head(status, headers, len(body))
        self.finished = True
        bare = self.method == "HEAD" or status in _NO_BODY
        return self._connection.send(head if bare else head + body)

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Begin a response, with its first bytes in the same write. Without a Content-Length its length is open."""
        head = self._head(status, headers, None)
        await self._connection.send(head + self._framed(first))

    async def write(self, data: bytes) -> None:
        """Send the next bytes of the response. Returns when the kernel has taken all of them, at the speed of the
        client's reading."""
        if data and (framed := self._framed(data)):
            await self._connection.send(framed)

    def write_now(self, data: bytes) -> bool:
        """Send bytes without waiting, from a task that is not the handler's. Returns ``False``, with nothing written,
        if sending would have to wait."""
        if not self._chunked or self.finished:
            return False
        return self._connection.transport.send_now(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self, last: bytes = b"") -> None:
        """End the response, with its last bytes in the same write."""
        data = self._framed(last)
        if self._left:
            raise RuntimeError(f"the answer is {self._left} bytes short of its Content-Length")
        if self._chunked:
            data += b"0\r\n\r\n"
        self.finished = True
        if data:
            await self._connection.send(data)

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        """Return the bytes of the response's head. ``length`` is the size of a whole body, ``None`` for a body in
        pieces."""
        if self.started:
            raise RuntimeError("there is an answer already")
        lines = [_START_LINES.get(status) or _start_line(status), self._connection.server.date_line()]
        given = None
        for name, value in headers:
            lower = name.lower()
            if lower == b"content-length":
                given = int(value)
            elif lower == b"connection":
                if value.lower() == b"close":
                    self.keep_alive = False
                continue
            elif lower == b"transfer-encoding":
                continue
            elif lower == b"date":
                lines[1] = b""
            lines.append(b"%b: %b\r\n" % (name, value))
        bare = self.method == "HEAD" or status in _NO_BODY
        if length is not None and given is None and status not in _NO_BODY:
            lines.append(b"content-length: %d\r\n" % length)
        elif length is not None and given is not None and given != length and not bare:
            raise ValueError(f"Content-Length is {given}, the body has {length} bytes")
        elif length is None:
            if bare:
                self._left = 0
            elif given is not None:
                self._left = given
            elif self.http_version == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False  # the end of the connection is the end of the body
        if self._connection.server.draining or (self._parser.expects and not self._parser.complete):
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self.http_version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines) - (not lines[1]):
            raise ValueError("a header with a line break in it")
        self.started = True
        return head

    def _framed(self, data: bytes) -> bytes:
        if not self.started or self.finished:
            raise RuntimeError("the answer is over" if self.finished else "the answer has not begun")
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if self._left is not None:
            if self.method == "HEAD" or not data:
                return b""
            if len(data) > self._left:
                raise RuntimeError("the answer is longer than its Content-Length")
            self._left -= len(data)
        return data


def error_response(error: BadRequest, error_body: ErrorBody) -> bytes:
    """Return the whole response, head and body, to a request that no handler answers; the connection closes behind."""
    body = error_body(error.status, error.message)
    further = _FURTHER.get(error.status, b"")
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    return b"%b%b%b\r\n%b" % (_START_LINES[error.status], head, further, body)
