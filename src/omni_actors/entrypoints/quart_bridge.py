"""The bridge to Quart: requests that no handler answers directly go through a Quart application, as ASGI messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import trio
from quart import Response, has_request_context, request, websocket
from quart.wrappers.request import Body
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.exceptions import BadHost

from omni_actors.entrypoints.failures import error_reply
from omni_actors.entrypoints.from_asgi import Message, Receive, Send
from omni_actors.entrypoints.http import Call, Handler, Opened, Reply, RequestContext
from omni_actors.entrypoints.middleware import GuardedExchange
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.server.to_asgi import Adapter
from omni_actors.entrypoints.server.websocket import WebSocket
from omni_actors.entrypoints.services import Services

CONTEXT = "omni_actors.request"
"""Key of the :class:`RequestContext` in the ASGI scope of a request that goes through Quart."""

EXCHANGE = "omni_actors.exchange"
"""Key of the :class:`GuardedExchange` in the ASGI scope of an HTTP request; a WebSocket's scope has none."""

OPENED = "omni_actors.opened"
"""Key, in the ASGI scope, of the resources that the handler has opened."""


class QuartBridge:
    """A Quart application that answers exchanges and WebSockets.

    ``quart`` is the application. Its errors are rendered in OpenAI's format, and it has no timeouts and no limit of
    body sizes of its own: the middleware in front of it has.
    """

    def __init__(self, services: Services) -> None:
        self.quart = _QuartApp(__name__, static_folder=None)
        self.quart.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None, MAX_CONTENT_LENGTH=None)
        self.quart.register_error_handler(Exception, _render)
        self._services = services

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Register a handler; ``path`` may have Quart's placeholders."""
        self.quart.add_url_rule(path, f"{method} {path}", _view(self._services, handler), methods=[method])

    async def http(self, exchange: GuardedExchange) -> None:
        """Answer an exchange. A body that fails after its head was sent leaves the exchange unfinished."""

        async def app(scope: Message, receive: Receive, send: Send) -> None:
            scope[CONTEXT], scope[EXCHANGE] = exchange.context, exchange
            await self._asgi(scope, receive, send)

        try:
            await Adapter(app).http(cast(Any, exchange))
        except _BrokenStream:
            return

    async def websocket(self, socket: WebSocket, path: str, context: RequestContext) -> None:
        """Serve a WebSocket of this project's own server."""

        async def app(scope: Message, receive: Receive, send: Send) -> None:
            await self.asgi_websocket(scope, receive, send, path, context)

        await Adapter(app).websocket(socket)

    async def asgi_websocket(
        self, scope: Message, receive: Receive, send: Send, path: str, context: RequestContext
    ) -> None:
        """Serve a WebSocket of another ASGI server."""
        scope["path"], scope[CONTEXT] = path, context
        await self._asgi(scope, receive, send)

    async def lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run Quart's own startup and shutdown."""
        await self.quart(scope, receive, send)  # type: ignore[arg-type]

    async def _asgi(self, scope: Message, receive: Receive, send: Send) -> None:
        await self.quart.asgi_app(scope, receive, send)  # type: ignore[arg-type]


class _Connection(TrioASGIHTTPConnection):
    """Quart's connection with two changes: nothing listens for a client's leaving, because the server cancels the
    handler; and the handler's resources are closed once its response has been sent, in the same task."""

    async def handle_messages(self, nursery: trio.Nursery, request: Any, receive: Any) -> None:  # type: ignore[override]
        return

    async def handle_request(self, nursery: trio.Nursery, request: Any, send: Any) -> None:  # type: ignore[override]
        async with Opened() as opened:
            request.scope[OPENED] = opened
            await super().handle_request(nursery, request, send)


class _SocketConnection(TrioASGIWebsocketConnection):
    """Quart's WebSocket with a fix: Quart-trio ignores an empty binary message (``event.get("bytes") or
    event["text"]``)."""

    async def handle_messages(self, nursery: trio.Nursery, receive: Any) -> None:  # type: ignore[override]
        async def receive_some() -> Message:
            event: Message = await receive()
            if event["type"] == "websocket.receive" and event.get("bytes") == b"":
                event["text"] = b""
            return event

        await super().handle_messages(nursery, receive_some)  # type: ignore[arg-type]


class _Body(Body):
    """A request's body, read from the exchange on demand, so that a slow reader slows down the sender."""

    def __init__(self, exchange: GuardedExchange) -> None:
        self._exchange = exchange

    async def __anext__(self) -> bytes:
        return await anext(self._exchange)

    def __await__(self) -> Any:
        return self._whole().__await__()

    async def _whole(self) -> bytes:
        return b"".join([piece async for piece in self._exchange])


class _Request(TrioRequest):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.body = _Body(more["scope"][EXCHANGE])


class _QuartApp(QuartTrio):
    asgi_http_class = _Connection
    asgi_websocket_class = _SocketConnection
    request_class = _Request  # type: ignore[assignment]

    def create_url_adapter(self, request: Any) -> Any:
        """Accept a Host that is no DNS name (``.x``) as well: nothing is routed by host."""
        try:
            return super().create_url_adapter(request)
        except BadHost:
            return self.url_map.bind("", path_info=request.path, default_method=request.method)


def _view(services: Services, handler: Handler) -> Callable[..., Awaitable[Response]]:
    async def view(**values: str) -> Response:
        scope = cast(dict[str, Any], request.scope)
        exchange: GuardedExchange = scope[EXCHANGE]
        exchange.context.route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        call = Call(exchange.context, exchange.fields, exchange, scope[OPENED], _never)
        return _response(await handler(services, call, **values), exchange.context.id)

    return view


def _never(data: bytes) -> bool:
    """Refuse to write without waiting: Quart writes its own responses."""
    return False


class _BrokenStream(Exception):
    """Ends a response abnormally."""


def _response(reply: Reply, request_id: str) -> Response:
    body = reply.body if isinstance(reply.body, bytes) else _pieces(reply.body, reply.events, request_id)
    response = Response(body, reply.status)
    response.timeout = None
    for name, value in reply.headers:
        response.headers[name] = value
    return response


async def _pieces(pieces: AsyncGenerator[bytes, None], events: bool, request_id: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:
            words = sse.last_words(error, request_id)
        else:
            return
        if events:
            yield words
        raise _BrokenStream


async def _render(error: Exception) -> Response:
    current = request if has_request_context() else websocket
    context: RequestContext = cast(dict[str, Any], current.scope)[CONTEXT]
    return _response(error_reply(error, context, getattr(current, "method", "GET"), current.path), context.id)
