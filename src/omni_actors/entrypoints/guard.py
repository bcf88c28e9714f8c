"""The one guard before every route: path, request id, CORS, keys, limits, and a reply for whatever went wrong.

It is plain ASGI, so that it stands before direct routes and Quart's alike.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import trio

from omni_actors.entrypoints.http import RequestContext
from omni_actors.entrypoints.openai.errors import error_body, error_headers, http_error, internal_error
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.protocol.errors import ErrorInfo, deadline_exceeded, invalid_request, too_large
from omni_actors.telemetry.logs import current_request
from omni_actors.telemetry.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Message, Receive, Send], Awaitable[None]]

CONTEXT = "omni_actors.request"
"""Key of the :class:`RequestContext` in the ASGI scope."""

OPEN_PATHS = frozenset({"/live", "/ready", "/health", "/version", "/metrics"})
"""Answered without a key, for probes and scrapers."""

DISCARD_S = 5.0
"""How long a refused body is read and thrown away, so that its sender gets to see the answer."""

EXPOSED = "X-Request-Id, X-Sample-Rate, X-Channels, X-Bits-Per-Sample, Retry-After"

log = logging.getLogger("omni_actors.http")

_LABEL = re.compile(r"[\x21-\x7e]{1,128}")
_SLASHES = re.compile(r"/{2,}")


class Guard:
    """An ASGI application around another one.

    It guarantees that every HTTP request gets exactly one reply with ``X-Request-Id`` and CORS headers (unless its
    client has gone), that errors are JSON, that no more than ``max_body`` bytes of a body reach the application, and
    that a client which stops sending its body is answered 408. Internal identity is never the caller's id.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, max_body: int, metrics: Metrics) -> None:
        self._app = app
        self._options = options
        self._max_body = max_body
        self._metrics = metrics
        self._keys = [_digest(key) for key in options.api_keys]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in reversed(scope["headers"])}
        path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        scope["path"] = path
        context = RequestContext(id=f"req-{uuid.uuid4().hex}", label=None, started=trio.current_time())
        scope[CONTEXT] = context
        token = current_request.set(context.id)
        try:
            if scope["type"] == "websocket":
                await self._websocket(scope, receive, send, headers, path)
            else:
                await self._http(scope, receive, send, headers, path, context)
        finally:
            current_request.reset(token)

    async def _websocket(
        self, scope: Message, receive: Receive, send: Send, headers: dict[bytes, bytes], path: str
    ) -> None:
        await receive()
        if path not in OPEN_PATHS and not self._authorized(headers):
            info = http_error(401, "A valid API key is needed: 'Authorization: Bearer KEY'.", code="invalid_api_key")
        else:  # there are no WebSocket routes yet
            info = http_error(404, "No such WebSocket route.", code="not_found")
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": info.message})
            return
        body = error_body(info)
        heads = [(name.encode(), value.encode("latin-1")) for name, value in error_headers(info)]
        heads.append((b"content-length", str(len(body)).encode()))
        await send({"type": "websocket.http.response.start", "status": info.status, "headers": heads})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})

    async def _http(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
        path: str,
        context: RequestContext,
    ) -> None:
        exchange = _Exchange(receive, send, context, self._max_body, self._options)
        exchange.cors = self._cors(headers.get(b"origin"))
        method = scope["method"]
        with self._metrics.http(context, method):
            try:
                refusal = self._check(method, path, headers, context)
                if refusal is not None:
                    # Who waits for a go-ahead sends nothing. Over HTTP/2 data may be under way all the same, and
                    # Hypercorn does not survive it behind an answer.
                    waits = b"expect" in headers and not scope["http_version"].startswith("2")
                    await exchange.refuse(refusal, drain=not waits)
                elif method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers:
                    await self._preflight(exchange, headers)
                else:
                    await self._app(scope, exchange.receive, exchange.send)
                    if exchange.refused is not None:
                        await exchange.refuse(exchange.refused, drain=exchange.refused.status == 413)
            except Exception:
                log.exception("unexpected failure of %s %r", method, path)
                await exchange.refuse(internal_error(context.id), drain=False)
            finally:
                took = (trio.current_time() - context.started) * 1000
                log.debug("%s %r: %s after %.1f ms", method, path, context.status or "client gone", took)

    def _check(self, method: str, path: str, headers: dict[bytes, bytes], context: RequestContext) -> ErrorInfo | None:
        """What speaks against a request before any of its body is read."""
        if (label := headers.get(b"x-request-id")) is not None:
            text = label.decode("latin-1")
            if _LABEL.fullmatch(text) is None:
                return invalid_request("X-Request-Id takes up to 128 printable ASCII characters.", "X-Request-Id").info
            context.label = text
            context.id = f"{context.id}:{text}"
            current_request.set(context.id)
        if method == "OPTIONS":
            return None
        if path not in OPEN_PATHS and not self._authorized(headers):
            return http_error(401, "A valid API key is needed: 'Authorization: Bearer KEY'.", code="invalid_api_key")
        if (timeout := headers.get(b"x-request-timeout")) is not None:
            try:
                context.timeout_s = float(timeout)
            except ValueError:
                context.timeout_s = -1.0
            if not 0 < context.timeout_s < float("inf"):
                return invalid_request(
                    "X-Request-Timeout takes a positive number of seconds.", "X-Request-Timeout"
                ).info
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body:
            return _body_too_large(self._max_body)
        return None

    def _authorized(self, headers: dict[bytes, bytes]) -> bool:
        """Compares against every key, in time that does not depend on where they differ."""
        if not self._keys:
            return True
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        digest = hashlib.sha256(given.strip()).digest()
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(digest, key)
        return found and scheme.lower() == b"bearer"

    def _cors(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        origins = self._options.cors_origins
        if origin is None or not origins:
            return []
        exposed = (b"access-control-expose-headers", EXPOSED.encode())
        if "*" in origins:
            return [(b"access-control-allow-origin", b"*"), exposed]
        vary = (b"vary", b"Origin")
        if origin.decode("latin-1") in origins:
            return [(b"access-control-allow-origin", origin), exposed, vary]
        return [vary]

    async def _preflight(self, exchange: _Exchange, headers: dict[bytes, bytes]) -> None:
        allowed = [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
            (b"access-control-max-age", b"600"),
        ]
        await exchange.send({"type": "http.response.start", "status": 204, "headers": allowed})
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


class _Exchange:
    """One request's receive and send, as the application behind the guard sees them.

    A body that is over the limit or stalls ends, for the application, with a disconnect: it is cancelled, and the guard
    answers in its place if the application has not begun to. Once the last piece of a response is on its way there is
    no disconnect any more: servers report one behind every response, and an application that is cancelled by it while
    the server still closes the connection would leave that connection open.
    """

    def __init__(
        self, receive: Receive, send: Send, context: RequestContext, max_body: int, options: ServerOptions
    ) -> None:
        self.cors: list[tuple[bytes, bytes]] = []
        self.refused: ErrorInfo | None = None
        self._receive = receive
        self._send = send
        self._context = context
        self._room = max_body
        self._max_body = max_body
        self._options = options
        self._more = True
        self._gone = False
        self._ending = False

    async def receive(self) -> Message:
        if self.refused is not None:
            return {"type": "http.disconnect"}
        if not self._more:  # only a disconnect can come now: an idle wait without a deadline
            message = await self._pull()
            if self._ending:
                await trio.sleep_forever()
            return message
        whole = self._options.body_s
        if self._context.timeout_s is not None:
            whole = min(whole, self._context.timeout_s)
        left = self._context.started + whole - trio.current_time()
        with trio.move_on_after(max(0.0, min(left, self._options.body_idle_s))):
            message = await self._pull()
            self._room -= len(message.get("body", b""))
            if self._room >= 0:
                return message
            self.refused = _body_too_large(self._max_body)
            return {"type": "http.disconnect"}
        self.refused = deadline_exceeded("The request's body did not arrive in time.").info
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.refused is not None and self._context.status == 0 and not message.get(CONTEXT):
                return  # the application lost a race against the refusal: the guard's answer stands
            self._context.status = message["status"]
            label = self._context.label or self._context.id
            message["headers"] = [*message["headers"], (b"x-request-id", label.encode("latin-1")), *self.cors]
        elif self._context.status == 0:
            return
        elif not message.get("more_body", False):
            self._ending = True
        await self._send(message)

    async def refuse(self, info: ErrorInfo, drain: bool = True) -> None:
        """Answer with an error, unless the answer has begun or the client is gone."""
        if self._context.status or self._gone:
            return
        if drain:
            with trio.move_on_after(DISCARD_S):
                while self._more and not self._gone:
                    await self._pull()
        body = error_body(info)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in error_headers(info)]
        headers.append((b"content-length", str(len(body)).encode()))
        if self._more:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": info.status, "headers": headers, CONTEXT: True})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _pull(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone, self._more = True, False
        else:
            self._more = bool(message.get("more_body", False))
        return message


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _body_too_large(limit: int) -> ErrorInfo:
    return too_large(f"The request's body is over the limit of {limit} bytes.").info
