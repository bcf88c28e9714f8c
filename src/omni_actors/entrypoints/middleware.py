"""The middleware in front of every route: paths, request ids, CORS, keys, limits, and error replies.

:meth:`Middleware.check`, :meth:`Middleware.cors` and :func:`normal_path` decide by method, path and headers alone.
:meth:`Middleware.run` applies their decisions to an exchange; the routes behind the middleware see that exchange as a
:class:`GuardedExchange`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from random import getrandbits
from urllib.parse import urlsplit

import trio

from omni_actors.entrypoints.admin.access import AdminAccess, is_admin
from omni_actors.entrypoints.http import Headers, HttpExchange, RequestContext
from omni_actors.entrypoints.keys import Keys, bearer
from omni_actors.entrypoints.openai.errors import error_body, error_headers, http_error, internal_error
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.picture_files import FILES
from omni_actors.entrypoints.server.minimum_rate import MinimumRate
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.errors import ErrorInfo, OmniError, deadline_exceeded, invalid_request, too_large
from omni_actors.protocol.request import MAX_PRIORITY
from omni_actors.telemetry.logs import current_request
from omni_actors.telemetry.metrics import Metrics

PROBES = frozenset({"/live", "/ready", "/health"})
"""Paths that are answered even while all connections are taken."""

OPEN_PATHS = PROBES | {"/version", "/metrics"}
"""Paths that are answered without a key, for probes and scrapers."""

EXPOSED = "X-Request-Id, X-Sample-Rate, X-Channels, X-Bits-Per-Sample, Retry-After"

log = logging.getLogger("omni_actors.http")

_LABEL = re.compile(r"[\x21-\x7e]{1,128}")
_SECONDS = re.compile(rb"[0-9]{0,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,3})?")
_PRIORITY = re.compile(rb"[+-]?[0-9]{1,4}")
_SLASHES = re.compile(r"/{2,}")


def normal_path(path: str) -> str:
    """Return a path in the form in which it is routed: without doubled and trailing slashes.

    A whole URL, which some servers pass in place of a path, gives its path, as in Quart: the middleware must decide by
    the same path that is routed.
    """
    if not path.startswith("/") and path != "*":
        try:
            path = urlsplit(path).path
        except ValueError:
            return "/"
    if "//" not in path and not path.endswith("/"):
        return path or "/"
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def is_open(path: str) -> bool:
    """Return whether a path, in its normal form, is answered without a key: probes, and pictures by URL, whose token is
    the key."""
    return path in OPEN_PATHS or path.startswith(FILES)


class Middleware:
    """Checks in front of all routes.

    Every HTTP request gets exactly one response with ``X-Request-Id`` and CORS headers (unless its client has gone);
    errors are JSON; at most ``max_body`` bytes of a body reach a route; a client that stops sending its body is
    answered 408. The server's own request id is never the caller's.
    """

    def __init__(self, options: ServerOptions, limits: DeploymentLimits, metrics: Metrics) -> None:
        self.options = options
        self.max_body = limits.max_body_bytes
        self._deadline_s = limits.deadline_s
        self._metrics = metrics
        self._keys = Keys(options.api_keys)
        self._admin = AdminAccess(options.admin_keys, self._keys)

    async def run(self, exchange: HttpExchange, answer: Callable[[GuardedExchange], Awaitable[None]]) -> None:
        """Refuse an exchange, or let ``answer`` answer it.

        If ``answer`` raises before the response has begun, an :class:`OmniError` is answered with its own status and
        another exception with 500. A response that has begun is left unfinished.
        """
        headers = dict(reversed(exchange.headers))  # of repeated headers the first
        method, path = exchange.method, normal_path(exchange.path)
        context = new_context()
        if not exchange.client:
            context.user = exchange.user
        context.http_version = exchange.http_version
        guarded = GuardedExchange(self, exchange, context, path, headers)
        token = current_request.set(context.id)
        self._metrics.http_begun()
        try:
            info = self.check(context, method, path, headers)
            if info is not None:
                await guarded.refuse(info)
            elif method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers:
                await guarded.respond(204, _preflight(headers), b"")
            else:
                await answer(guarded)
        except OmniError as error:
            await guarded.refuse(error.info)
        except Exception:
            log.exception("unexpected failure of %s %r", method, path)
            await guarded.refuse(internal_error(context.id))
        finally:
            self._metrics.http_over(context, method)
            if log.isEnabledFor(logging.DEBUG):
                took = (trio.current_time() - context.started) * 1000
                log.debug("%s %r: %s after %.1f ms", method, path, context.status or "client gone", took)
            current_request.reset(token)

    def admit(self, path: str, headers: Mapping[bytes, bytes], context: RequestContext) -> ErrorInfo | None:
        """Check a WebSocket before it is accepted, as :meth:`check` does for requests. WebSockets have
        no open paths."""
        context.route = "websocket"
        if is_open(path):
            return http_error(404, f"No such WebSocket route: {path}.", code="not_found")
        return self.check(context, "GET", path, headers)

    def check(
        self, context: RequestContext, method: str, path: str, headers: Mapping[bytes, bytes]
    ) -> ErrorInfo | None:
        """Return the error that refuses a request by its head alone, or ``None``; put the values of its headers into
        ``context``."""
        if (label := headers.get(b"x-request-id")) is not None:
            text = label.decode("latin-1")
            if _LABEL.fullmatch(text) is None:
                return invalid_request("X-Request-Id takes up to 128 printable ASCII characters.", "X-Request-Id").info
            context.label = text
            context.id = f"{context.id}:{text}"
            current_request.set(context.id)
        if method == "OPTIONS":
            return None
        if is_admin(path):
            if (info := self._admin.refusal(context, headers)) is not None:
                return info
        elif not is_open(path) and self._keys:
            place = self._keys.find(bearer(headers))
            if place is None:
                message = "A valid API key is needed: 'Authorization: Bearer KEY'."
                return http_error(401, message, code="invalid_api_key")
            context.tenant = f"key {place}"  # reveals nothing of the key
        context.timeout_s = self._deadline_s
        if (timeout := headers.get(b"x-request-timeout")) is not None:
            try:
                seconds = float(timeout) if _SECONDS.fullmatch(timeout) else -1.0
            except ValueError:
                seconds = -1.0
            if not 0 < seconds < float("inf"):
                message = "X-Request-Timeout takes a positive number of seconds."
                return invalid_request(message, "X-Request-Timeout").info
            context.timeout_s = min(seconds, self._deadline_s)
        if (priority := headers.get(b"x-request-priority")) is not None:
            if _PRIORITY.fullmatch(priority) is None or abs(int(priority)) > MAX_PRIORITY:
                message = f"X-Request-Priority takes a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}."
                return invalid_request(message, "X-Request-Priority").info
            context.priority = int(priority)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_body:
            return _body_too_large(self.max_body)
        return None

    def cors(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        """Return the CORS headers of a response to a browser page from ``origin``."""
        origins = self.options.cors_origins
        if not origins:
            return []
        exposed = (b"access-control-expose-headers", EXPOSED.encode())
        if "*" in origins:
            return [(b"access-control-allow-origin", b"*"), exposed]
        vary = (b"vary", b"Origin")
        if origin.decode("latin-1") in origins:
            return [(b"access-control-allow-origin", origin), exposed, vary]
        return [vary]


class GuardedExchange:
    """An :class:`HttpExchange` behind the middleware: its body is limited in size and time, its response carries the
    request id.

    ``receive`` raises 413 and 408 (:class:`OmniError`).
    """

    __slots__ = (
        "_exchange",
        "_middleware",
        "_pace",
        "_room",
        "context",
        "fields",
        "finish",
        "headers",
        "method",
        "path",
        "query",
        "write",
        "write_now",
    )

    def __init__(
        self,
        middleware: Middleware,
        exchange: HttpExchange,
        context: RequestContext,
        path: str,
        fields: dict[bytes, bytes],
    ) -> None:
        self.context = context
        self.method = exchange.method
        self.path = path
        self.query = exchange.query
        self.headers = exchange.headers
        self.fields = fields
        """Header values by name; of repeated headers the first value."""
        self._middleware = middleware
        self._exchange = exchange
        self._pace: MinimumRate | None = None
        self._room = middleware.max_body
        self.write = exchange.write
        self.write_now = exchange.write_now
        self.finish = exchange.finish

    # Further attributes for Quart. (By ``__getattr__`` they would make every attribute of this class slow to read.)

    @property
    def http_version(self) -> str:
        return self._exchange.http_version

    @property
    def scheme(self) -> str:
        return self._exchange.scheme

    @property
    def target(self) -> bytes:
        return self._exchange.target

    @property
    def client(self) -> tuple[str, int] | None:
        return self._exchange.client

    @property
    def server(self) -> tuple[str, int | None]:
        return self._exchange.server

    @property
    def started(self) -> bool:
        return self._exchange.started

    @property
    def finished(self) -> bool:
        return self._exchange.finished

    @property
    def received(self) -> bool:
        return self._exchange.received

    async def receive(self) -> bytes:
        if self._exchange.received:
            piece = await self._exchange.receive()
        else:
            piece = await self._receive_in_time()
        self._room -= len(piece)
        if self._room < 0:
            raise OmniError(_body_too_large(self._middleware.max_body))
        return piece

    async def _receive_in_time(self) -> bytes:
        limits, context = self._middleware.options.limits, self.context
        pace = self._pace = self._pace or MinimumRate(limits.body_rate, limits.body_idle_s)
        left_s = context.started + min(limits.body_s, context.timeout_s) - trio.current_time()
        with trio.move_on_after(max(0.0, min(left_s, pace.begin()))):
            piece = await self._exchange.receive()
            pace.came(len(piece))
            return piece
        slowly = f", or at less than {limits.body_rate} bytes per second" if limits.body_rate else ""
        raise deadline_exceeded(f"The request's body did not arrive in time{slowly}.")

    def __aiter__(self) -> GuardedExchange:
        """Iterate over the pieces of the body."""
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.receive():
            return piece
        raise StopAsyncIteration

    def respond(self, status: int, headers: Headers, body: bytes) -> Awaitable[None]:
        return self._exchange.respond(status, self._head(status, headers), body)

    def start(self, status: int, headers: Headers, first: bytes = b"") -> Awaitable[None]:
        return self._exchange.start(status, self._head(status, headers), first)

    async def refuse(self, info: ErrorInfo) -> None:
        """Answer with an error, unless the answer has begun."""
        if self.context.status:
            return
        await self.respond(*refusal(info))

    def _head(self, status: int, headers: Headers) -> Headers:
        context = self.context
        context.status = status
        label = context.label or context.id
        made = [*headers, (b"x-request-id", label.encode("latin-1"))]
        origin = self.fields.get(b"origin")
        return made if origin is None else made + self._middleware.cors(origin)


def new_context() -> RequestContext:
    """Return the context of a request that has just arrived."""
    return RequestContext("req-" + getrandbits(128).to_bytes(16, "little").hex(), None, trio.current_time())


def refusal(info: ErrorInfo) -> tuple[int, Headers, bytes]:
    """Return an error's status, headers and body."""
    return info.status, [(n.encode(), v.encode("latin-1")) for n, v in error_headers(info)], error_body(info)


def _preflight(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
        (b"access-control-max-age", b"600"),
    ]


def _body_too_large(limit: int) -> ErrorInfo:
    return too_large(f"The request's body is over the limit of {limit} bytes.").info
