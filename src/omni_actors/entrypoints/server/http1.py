"""HTTP/1.1: requests read out of a stream of bytes, and the exchange that answers one."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

import httptools

from omni_actors.entrypoints.openai.errors import error_body, http_error
from omni_actors.entrypoints.server.limits import Limits

if TYPE_CHECKING:
    from omni_actors.entrypoints.server.connection import Connection

Headers = list[tuple[bytes, bytes]]

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

STEPS = 256
"""Most pieces that are parsed in one go. A body may be cut into pieces at every fourth byte."""

_BODY = frozenset({b"content-length", b"transfer-encoding"})
_END = b"\r\n\r\n"
_NO_BODY = frozenset({204, 304})


class BadRequest(Exception):
    """What a client sent is not (acceptable) HTTP/1.1: its connection ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RequestParser:
    """Takes requests out of a stream of bytes, one at a time. Without I/O.

    httptools (llhttp) parses, strictly: conflicting lengths, bare line feeds, folded lines and malformed chunks are
    refused. It reads on into the next request, though, and does not say where one ends; so it is given no byte behind
    the end of the present one. A head, and a chunked body, end with an empty line; a body of known length by counting.
    """

    __slots__ = (
        "_framing",
        "_left",
        "_limits",
        "_parser",
        "_protocol",
        "_tail",
        "_url",
        "body",
        "complete",
        "expects",
        "head_complete",
        "headers",
        "keep_alive",
        "path",
        "query",
        "upgrade",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self.next()

    def next(self) -> None:
        """Begin with the next request."""
        self.headers: Headers = []
        self.body: list[bytes] = []
        self.head_complete = False
        self.complete = False
        self.keep_alive = False
        self.expects = False
        self.upgrade = False
        self.path = self.query = b""
        self._url = b""
        self._tail = b""
        self._left: int | None = None  # of a body whose length is known
        self._framing = 0

    @property
    def method(self) -> str:
        method: bytes = self._parser.get_method()
        return method.decode()

    @property
    def version(self) -> str:
        version: str = self._parser.get_http_version()
        return version

    @property
    def target(self) -> bytes:
        return self._url

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the present request, or the beginning of it (of data that is much work: others want to
        run, too); returns the rest. Raises :class:`BadRequest`."""
        at = 0
        for _ in range(STEPS):
            end = self._reach(data, at)
            self._parse(data if end - at == len(data) else memoryview(data)[at:end])
            at = end
            if self.complete or at == len(data):
                break
        return data[at:]

    def _reach(self, data: bytes, at: int) -> int:
        """Up to where it cannot be beyond the present request."""
        if self._left is not None:
            end = min(at + self._left, len(data))
            self._left -= end - at
            return end
        tail, self._tail = self._tail, b""  # an empty line may have begun in it
        if tail and (end := (tail + data[:3]).find(_END)) >= 0:
            return end + len(_END) - len(tail)
        if (end := data.find(_END, at)) >= 0:
            return end + len(_END)
        self._tail = (tail + data[max(at, len(data) - 3) :])[-3:]
        return len(data)

    def _parse(self, data: bytes | memoryview) -> None:
        self._framing += len(data)
        head = not self.head_complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if not self.upgrade:  # to something that is not spoken here: an ordinary request (RFC 9110, 7.8)
                self._resume()
        except httptools.HttpParserInvalidURLError:
            raise BadRequest(400, "The request's target is malformed.") from None
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadRequest):
                raise error.__context__ from None
            raise BadRequest(400, f"Malformed request: {error}.") from None
        if head:
            self._check_size()
        elif self._framing > self._limits.head_bytes:
            raise BadRequest(431, "Too much framing for too little body.")

    def _check_size(self) -> None:
        limits = self._limits
        if len(self._url) > limits.request_line_bytes:
            raise BadRequest(414, f"The request's target is longer than {limits.request_line_bytes} bytes.")
        if self._framing > limits.head_bytes:
            raise BadRequest(431, f"The request's head is larger than {limits.head_bytes} bytes.")
        if self.head_complete:
            self._framing = 0

    def _resume(self) -> None:
        """A fresh parser stands where the body begins: llhttp takes what follows a refused upgrade for the upgraded."""
        body = [(name, value) for name, value in self.headers if name in _BODY]
        if not body:
            return
        self.complete = False
        headers, self.headers = self.headers, []
        self._parser = httptools.HttpRequestParser(self)
        lines = b"".join(b"%b: %b\r\n" % line for line in body)
        self.head_complete = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
        self.headers = headers

    # httptools' callbacks

    def on_url(self, url: bytes) -> None:
        if not self.head_complete:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_complete:
            return  # trailers are of no use to anybody here
        if len(self.headers) == self._limits.headers:
            raise BadRequest(431, f"The request has more than {self._limits.headers} header lines.")
        self.headers.append((name.lower(), value.strip()))

    def on_headers_complete(self) -> None:
        if self.head_complete:
            return
        self.head_complete = True
        self.keep_alive = self._parser.should_keep_alive()
        self._check_head()

    def _check_head(self) -> None:
        version = self.version
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, f"HTTP {version} is not spoken here, but 1.1.")
        if self.method not in METHODS:
            raise BadRequest(501, f"The method {self.method} is not known here.")
        hosts = 0
        upgrades = self._parser.should_upgrade()
        for name, value in self.headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                if version == "1.0":
                    raise BadRequest(400, "HTTP/1.0 has no Transfer-Encoding.")
                if value.lower() != b"chunked":
                    raise BadRequest(501, "The only Transfer-Encoding that is known here is 'chunked'.")
            elif name == b"expect":
                self.expects = value.lower() == b"100-continue" and version == "1.1"
            elif name == b"upgrade" and upgrades:
                self.upgrade = value.lower() == b"websocket"
        if self.upgrade and any(name in _BODY and value != b"0" for name, value in self.headers):
            raise BadRequest(400, "A request for a WebSocket has no body.")
        self.path, self.query = _split(self._url)
        if hosts > 1 or (not hosts and version == "1.1"):
            raise BadRequest(400, "A request has one Host.")

    def on_body(self, data: bytes) -> None:
        self._framing = 0
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


def _start_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_START_LINES = {status.value: _start_line(status) for status in HTTPStatus}


class DateLine:
    """The header Date, made once a second."""

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


class Exchange:
    """One HTTP request, to whoever answers it, and its answer.

    ``path`` is percent-decoded, ``query`` is raw, header names are lower-case. The handler runs in a cancel scope that
    is cancelled when its client leaves, stops reading, or breaks the protocol: nothing here raises for these. An answer
    is one :meth:`respond`, or :meth:`start`, :meth:`write` … and :meth:`finish`; a handler that returns in between
    leaves it unfinished, which the client sees as an abnormal end.
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

    def __init__(self, connection: Connection, parser: RequestParser) -> None:
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
        """Address and port; ``None`` over a unix socket."""
        return self._connection.client

    @property
    def server(self) -> tuple[str, int | None]:
        return self._connection.server.address

    @property
    def scheme(self) -> str:
        return self._connection.server.scheme

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the connection's end says where the answer ends (HTTP/1.0, of unknown length)."""
        return not self._chunked and self._left is None

    @property
    def received(self) -> bool:
        """Whether :meth:`receive` has given (or has at hand) the whole body."""
        return self._parser.complete

    async def receive(self) -> bytes:
        """The next piece of the body, ``b""`` at its end. A client that waits for a go-ahead is given it by the first
        call. There is no deadline here."""
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

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """The whole answer, in one write."""
        head = self._head(status, headers, len(body))
        self.finished = True
        bare = self.method == "HEAD" or status in _NO_BODY
        await self._connection.send(head if bare else head + body)

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Begin an answer, with its first bytes in the same write. Without a Content-Length its length is open."""
        head = self._head(status, headers, None)
        await self._connection.send(head + self._framed(first))

    async def write(self, data: bytes) -> None:
        """The next bytes of the answer. Returns when the kernel has them all, which is as fast as the client reads."""
        if data and (framed := self._framed(data)):
            await self._connection.send(framed)

    def write_now(self, data: bytes) -> bool:
        """:meth:`write` without waiting, and not by the answer's own task. ``False``: it has to wait, so that nothing
        is written."""
        if not self._chunked or self.finished:
            return False
        return self._connection.transport.send_now(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self, last: bytes = b"") -> None:
        """The end of the answer, with its last bytes in the same write."""
        data = self._framed(last)
        if self._left:
            raise RuntimeError(f"the answer is {self._left} bytes short of its Content-Length")
        if self._chunked:
            data += b"0\r\n\r\n"
        self.finished = True
        if data:
            await self._connection.send(data)

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        """``length`` of a whole body, ``None`` if it comes in pieces."""
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
        if head.count(b"\n") != len(lines) - (not lines[1]):
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


def error_response(error: BadRequest) -> bytes:
    """The answer to a request that is answered by nobody else; the connection is closed behind it."""
    body = error_body(http_error(error.status, error.message))
    further = b"upgrade: websocket\r\nsec-websocket-version: 13\r\n" if error.status == 426 else b""
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
    return b"%b%b%b\r\n%b" % (_START_LINES[error.status], head, further, body)


def _split(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target in any of its forms (RFC 9112, 3.2)."""
    if not target.startswith(b"/") and target != b"*":
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise BadRequest(400, "The request's target is malformed.") from None
        return url.path or b"/", url.query or b""
    path, _, query = target.partition(b"#")[0].partition(b"?")
    return path, query
