"""A parser of HTTP/1.1 requests, without I/O."""

from __future__ import annotations

import httptools

from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.limits import Limits

Headers = list[tuple[bytes, bytes]]

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

STEPS = 256
"""Largest number of pieces parsed in one call of ``feed``. A body may be cut into pieces at every fourth byte."""

CHUNK_FRAMING = 8
"""Bytes that a chunk's size and line ends may take; further bytes (extensions, zeros, trailers) count against a limit.
"""

_BODY = frozenset({b"content-length", b"transfer-encoding"})
_END = b"\r\n\r\n"


class RequestParser:
    """Reads requests out of a stream of bytes, one at a time, without I/O.

    httptools (llhttp) parses strictly: conflicting lengths, bare line feeds, folded lines and malformed chunks are
    refused. But httptools reads on into the next request and does not say where a request ends, so it is given no byte
    beyond the end of the current request. The end of a head, and of a chunked body, is found by the empty line; the end
    of a body of known length by counting.
    """

    __slots__ = (
        "_chunks",
        "_data",
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
        "method",
        "path",
        "query",
        "upgrade",
        "version",
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
        self.method = self.version = ""
        self.path = self.query = b""
        self._url = b""
        self._tail = b""
        self._left: int | None = None  # bytes left of a body of known length
        self._framing = 0  # bytes of the head; then bytes of the body with its framing
        self._data = 0  # bytes of the body without framing
        self._chunks = 0

    @property
    def target(self) -> bytes:
        return self._url

    def feed(self, data: bytes) -> bytes:
        """Parse bytes of the current request and return the bytes after it. Of data that takes long to parse, only a
        beginning is taken, so that other tasks can run. Raises :class:`BadRequest`."""
        at = 0
        for _ in range(STEPS):
            end = self._reach(data, at)
            self._parse(data if end - at == len(data) else memoryview(data)[at:end])
            at = end
            if self.complete or at == len(data):
                break
        return data[at:]

    def _reach(self, data: bytes, at: int) -> int:
        """Return the end of the bytes that surely belong to the current request."""
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
            if not self.upgrade:  # an upgrade that is not supported: an ordinary request (RFC 9110, 7.8)
                self._resume()
        except httptools.HttpParserInvalidURLError:
            raise BadRequest(400, "The request's target is malformed.") from None
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, BadRequest):
                raise error.__context__ from None
            raise BadRequest(400, f"Malformed request: {error}.") from None
        if head:
            self._check_size()
        elif self._framing - self._data - CHUNK_FRAMING * self._chunks > self._limits.head_bytes + self._data:
            raise BadRequest(431, "The body's chunks have more extensions and trailers than data.")

    def _check_size(self) -> None:
        limits = self._limits
        if len(self._url) > limits.request_line_bytes:
            raise BadRequest(414, f"The request's target is longer than {limits.request_line_bytes} bytes.")
        if self._framing > limits.head_bytes:
            raise BadRequest(431, f"The request's head is larger than {limits.head_bytes} bytes.")
        if self.head_complete:
            self._framing = 0

    def _resume(self) -> None:
        """Continue at the body with a new parser; llhttp treats bytes after a refused upgrade as that protocol."""
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
            return  # trailers are not used
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
        self.method = self._parser.get_method().decode()
        version = self.version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, f"HTTP {version} is not supported; use HTTP/1.1.")
        if self.method not in METHODS:
            raise BadRequest(501, f"The method {self.method} is not supported.")
        hosts = 0
        upgrades = self._parser.should_upgrade()
        for name, value in self.headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                if version == "1.0":
                    raise BadRequest(400, "HTTP/1.0 does not have Transfer-Encoding.")
                if value.lower() != b"chunked":
                    raise BadRequest(501, "The only supported Transfer-Encoding is 'chunked'.")
            elif name == b"expect":
                self.expects = value.lower() == b"100-continue" and version == "1.1"
            elif name == b"upgrade" and upgrades:
                self.upgrade = value.lower() == b"websocket"
        if self.upgrade and any(name in _BODY and value != b"0" for name, value in self.headers):
            raise BadRequest(400, "A request for a WebSocket must not have a body.")
        self.path, self.query = _split(self._url)
        if hosts > 1 or (not hosts and version == "1.1"):
            raise BadRequest(400, "A request needs exactly one Host header.")

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, data: bytes) -> None:
        self._data += len(data)
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


def _split(target: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a request target in any of its forms (RFC 9112, 3.2)."""
    if not target.startswith(b"/") and target != b"*":
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise BadRequest(400, "The request's target is malformed.") from None
        return url.path or b"/", url.query or b""
    path, _, query = target.partition(b"#")[0].partition(b"?")
    return path, query
