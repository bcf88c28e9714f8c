"""The application: its routes, behind the middleware.

Those of :data:`ROUTES` are answered directly on their exchange. Quart, on trio, has the rest: what an embedder
registers there, paths with placeholders, HEAD and OPTIONS, unknown paths and wrong methods.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, cast

import trio
from quart import Response, has_request_context, request, websocket
from quart.wrappers.request import Body
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection
from quart_trio.wrappers import TrioRequest
from werkzeug.exceptions import BadHost, HTTPException

from omni_actors.entrypoints import probes
from omni_actors.entrypoints.admin import replicas
from omni_actors.entrypoints.from_asgi import AsgiExchange, Message, Receive, Send
from omni_actors.entrypoints.http import JSON, Call, Exchange, Opened, Reply, RequestContext
from omni_actors.entrypoints.middleware import GuardedExchange, Middleware, new_context, normal_path, refusal
from omni_actors.entrypoints.openai import chat, completions, models, openapi, speech, sse, transcriptions
from omni_actors.entrypoints.openai.errors import error_body, error_headers, http_error, internal_error
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server.to_asgi import Adapter
from omni_actors.entrypoints.server.websocket import WebSocket
from omni_actors.entrypoints.services import Orchestration, Services
from omni_actors.media.client import MediaService
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.telemetry.logs import current_request
from omni_actors.telemetry.metrics import Metrics

Handler = Callable[..., Awaitable[Reply]]
Route = tuple[str, str, Handler]
"""Method, path (with Quart's placeholders), handler."""

SocketHandler = Callable[[Services, WebSocket], Awaitable[None]]
SocketRoute = tuple[str, SocketHandler]
"""Path and handler of a WebSocket."""

CONTEXT = "omni_actors.request"
"""Key of the :class:`RequestContext` in the ASGI scope of what goes through Quart."""

GUARDED = "omni_actors.exchange"
"""Key of the :class:`GuardedExchange` exchange there; a WebSocket has none."""

OPENED = "omni_actors.opened"
"""Key of what the call has opened there."""

log = logging.getLogger("omni_actors.http")

ROUTES: tuple[Route, ...] = (
    ("POST", "/v1/chat/completions", chat.create),
    ("POST", "/v1/completions", completions.create),
    ("POST", "/v1/audio/speech", speech.create),
    ("POST", "/v1/audio/transcriptions", transcriptions.transcribe),
    ("POST", "/v1/audio/translations", transcriptions.translate),
    ("GET", "/v1/audio/voices", models.voices),
    ("GET", "/v1/audio/models", models.audio_models),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/<path:name>", models.one_model),
    ("GET", "/admin/replicas", replicas.listed),
    ("POST", "/admin/replicas", replicas.command),
    ("GET", "/live", probes.live),
    ("GET", "/ready", probes.ready),
    ("GET", "/health", probes.health),
    ("GET", "/version", probes.version),
    ("GET", "/metrics", probes.metrics),
    ("GET", "/openapi.json", openapi.describe),
)


def build_app(
    orchestrator: Orchestration, media: MediaService | None, plan: Plan, options: ServerOptions | None = None
) -> Application:
    """The application of one deployment. ``media`` is ``None`` where the plan has no media stage."""
    options = options or ServerOptions()
    return Application(Services(orchestrator, media, plan, options, Metrics()), ROUTES)


class Application:
    """Routes behind the middleware. Served by :meth:`http` on this project's server, and as ASGI by any other.

    A handler runs in its request's own task; the client's leaving cancels it, and with it what it opened. All that is
    closed, in the same task, once its answer is sent.
    """

    def __init__(self, services: Services, routes: Iterable[Route], sockets: Iterable[SocketRoute] = ()) -> None:
        self.services = services
        self.quart = _App(__name__, static_folder=None)
        """Where an embedder registers routes of its own. They stand behind the middleware like the others."""
        self.quart.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None, MAX_CONTENT_LENGTH=None)
        self.quart.register_error_handler(Exception, _render)
        self._direct: dict[tuple[str, str], Handler] = {}
        self._sockets = dict(sockets)
        self._middleware = Middleware(services.options, services.plan.limits, services.metrics)
        for method, path, handler in routes:
            self.quart.add_url_rule(path, f"{method} {path}", _view(services, handler), methods=[method])
            if "<" not in path:
                self._direct[method, path] = handler

    def http(self, exchange: Exchange) -> Awaitable[None]:
        """Answer one request."""
        return self._middleware.run(exchange, self._answer)

    async def websocket(self, socket: WebSocket) -> None:
        """Serve one WebSocket."""
        path, context = normal_path(socket.path), new_context()
        context.user = socket.user
        token = current_request.set(context.id)
        try:
            info = self._middleware.admit(path, dict(reversed(socket.headers)), context)
            if info is not None:
                await socket.reject(*refusal(info))
            elif (handler := self._sockets.get(path)) is not None:
                await handler(self.services, socket)
            else:

                async def app(scope: Message, receive: Receive, send: Send) -> None:
                    scope["path"], scope[CONTEXT] = path, context
                    await self.quart.asgi_app(scope, receive, send)  # type: ignore[arg-type]

                await Adapter(app).websocket(socket)
        finally:
            current_request.reset(token)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        if scope["type"] == "lifespan":
            await self.quart(scope, receive, send)  # type: ignore[arg-type]
        elif scope["type"] == "http":
            await AsgiExchange(scope, receive, send).run(self.http)
        else:
            await self._asgi_websocket(scope, receive, send)

    def _answer(self, exchange: GuardedExchange) -> Awaitable[None]:
        handler = self._direct.get((exchange.method, exchange.path))
        if handler is None:
            return self._through_quart(exchange)
        exchange.context.route = exchange.path
        return _direct(self.services, exchange, handler)

    async def _through_quart(self, exchange: GuardedExchange) -> None:
        async def app(scope: Message, receive: Receive, send: Send) -> None:
            scope[CONTEXT], scope[GUARDED] = exchange.context, exchange
            await self.quart.asgi_app(scope, receive, send)  # type: ignore[arg-type]

        try:
            await Adapter(app).http(cast(Any, exchange))
        except _BrokenStream:
            return

    async def _asgi_websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Under another server, Quart has all WebSockets."""
        path, context = normal_path(scope["path"]), new_context()
        headers = {name.lower(): value for name, value in reversed(scope["headers"])}
        token = current_request.set(context.id)
        try:
            info = self._middleware.admit(path, headers, context)
            if info is None:
                scope["path"], scope[CONTEXT] = path, context
                await self.quart.asgi_app(scope, receive, send)  # type: ignore[arg-type]
            else:
                await _refuse_websocket(scope, receive, send, info)
        finally:
            current_request.reset(token)


async def _refuse_websocket(scope: Message, receive: Receive, send: Send, info: ErrorInfo) -> None:
    await receive()
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": info.message})
        return
    status, headers, body = refusal(info)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


_JSON = [(name.encode(), value.encode()) for name, value in JSON]


async def _direct(services: Services, exchange: GuardedExchange, handler: Handler) -> None:
    """Answer by a handler, without anything between it and the exchange."""
    async with Opened() as opened:
        try:
            if exchange.fields.get(b"content-encoding", b"identity").lower() != b"identity":
                message = "Bodies are taken as they are: Content-Encoding is not known here."
                raise OmniError(http_error(415, message, param="Content-Encoding"))
            call = Call(exchange.context, exchange.fields, exchange, opened, exchange.write_now)
            reply = await handler(services, call)
        except Exception as error:
            reply = _failed(error, exchange.context, exchange.method, exchange.path)
        headers = _JSON
        if reply.headers is not JSON:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
        if isinstance(reply.body, bytes):
            await exchange.respond(reply.status, headers, reply.body)
            return
        async with aclosing(reply.body) as pieces:
            try:
                first = await anext(pieces, b"")
            except Exception as error:
                words = sse.last_words(error, exchange.context.id)
                await exchange.start(reply.status, headers, words if reply.events else b"")
                return
            await exchange.start(reply.status, headers, first)
            write = exchange.write
            try:
                async for piece in pieces:
                    await write(piece)
            except Exception as error:
                words = sse.last_words(error, exchange.context.id)
                if reply.events:
                    await write(words)
                return
            await exchange.finish()


def _failed(error: Exception, context: RequestContext, method: str, path: str) -> Reply:
    """Every failure as OpenAI's JSON. What is unexpected is logged with its traceback; the client gets its id."""
    info: ErrorInfo
    headers: list[tuple[str, str]] = []
    if isinstance(error, OmniError):
        info = error.info
    elif isinstance(error, HTTPException):
        headers = [(name, value) for name, value in error.get_headers() if name.lower() == "allow"]
        info = _of_http(error, method, path)
    else:
        log.error("unexpected failure of %s %r", method, path, exc_info=error)
        info = internal_error(context.id)
    return Reply(error_body(info), [*error_headers(info), *headers], info.status)


def _of_http(error: HTTPException, method: str, path: str) -> ErrorInfo:
    status = error.code or 500
    if status == 404:
        return http_error(404, f"No such route: {method} {path}.", code="not_found")
    if status == 405:
        return http_error(405, f"{path} does not take {method}.", code="method_not_allowed")
    return http_error(status, error.description or error.name)


# ---- what goes through Quart


class _Connection(TrioASGIHTTPConnection):
    """Changes two things of Quart's: a client's leaving cancels whoever answers, so nobody listens for it here; and
    what a handler opened is closed once its response is sent, in the same task."""

    async def handle_messages(self, nursery: trio.Nursery, request: Any, receive: Any) -> None:  # type: ignore[override]
        return

    async def handle_request(self, nursery: trio.Nursery, request: Any, send: Any) -> None:  # type: ignore[override]
        async with Opened() as opened:
            request.scope[OPENED] = opened
            await super().handle_request(nursery, request, send)


class _SocketConnection(TrioASGIWebsocketConnection):
    """Quart-trio takes an empty binary message for none (``event.get("bytes") or event["text"]``)."""

    async def handle_messages(self, nursery: trio.Nursery, receive: Any) -> None:  # type: ignore[override]
        async def receive_some() -> Message:
            event: Message = await receive()
            if event["type"] == "websocket.receive" and event.get("bytes") == b"":
                event["text"] = b""
            return event

        await super().handle_messages(nursery, receive_some)  # type: ignore[arg-type]


class _Body(Body):
    """A request's body, read from the exchange when it is asked for: its sender is held back by a slow reader."""

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
        self.body = _Body(more["scope"][GUARDED])


class _App(QuartTrio):
    asgi_http_class = _Connection
    asgi_websocket_class = _SocketConnection
    request_class = _Request  # type: ignore[assignment]

    def create_url_adapter(self, request: Any) -> Any:
        """Also for a Host that is no name of the DNS (``.x``): nothing here is routed by it."""
        try:
            return super().create_url_adapter(request)
        except BadHost:
            return self.url_map.bind("", path_info=request.path, default_method=request.method)


def _view(services: Services, handler: Handler) -> Callable[..., Awaitable[Response]]:
    async def view(**values: str) -> Response:
        scope = cast(dict[str, Any], request.scope)
        exchange: GuardedExchange = scope[GUARDED]
        exchange.context.route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        call = Call(exchange.context, exchange.fields, exchange, scope[OPENED], _never)
        return _response(await handler(services, call, **values), exchange.context.id)

    return view


def _never(data: bytes) -> bool:
    """What goes through Quart is written by Quart."""
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
    asked = request if has_request_context() else websocket
    context: RequestContext = cast(dict[str, Any], asked.scope)[CONTEXT]
    return _response(_failed(error, context, getattr(asked, "method", "GET"), asked.path), context.id)
