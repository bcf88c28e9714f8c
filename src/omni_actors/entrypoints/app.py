"""The application: its routes, behind the middleware.

Handlers of :data:`ROUTES` answer directly on their exchange. Quart, on trio, answers the rest: routes that an embedder
registers, paths with placeholders, HEAD and OPTIONS, unknown paths and wrong methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing

from omni_actors.entrypoints import probes
from omni_actors.entrypoints.admin import replicas
from omni_actors.entrypoints.failures import error_reply
from omni_actors.entrypoints.from_asgi import AsgiExchange, Message, Receive, Send
from omni_actors.entrypoints.http import JSON, Call, Handler, HttpExchange, Opened
from omni_actors.entrypoints.middleware import GuardedExchange, Middleware, new_context, normal_path, refusal
from omni_actors.entrypoints.openai import chat, completions, loras, models, openapi, speech, sse, transcriptions
from omni_actors.entrypoints.openai.errors import http_error
from omni_actors.entrypoints.openai.images import create as images
from omni_actors.entrypoints.openai.images.edit import edit
from omni_actors.entrypoints.openai.images.files import file as picture_file
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.orchestration import Orchestration
from omni_actors.entrypoints.quart_bridge import QuartBridge
from omni_actors.entrypoints.server.websocket import WebSocket
from omni_actors.entrypoints.services import Services
from omni_actors.media.service.client import MediaService
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.telemetry.logs import current_request
from omni_actors.telemetry.metrics import Metrics

Route = tuple[str, str, Handler]
"""Method, path (with Quart's placeholders) and handler of a route."""

SocketHandler = Callable[[Services, WebSocket], Awaitable[None]]
SocketRoute = tuple[str, SocketHandler]
"""Path and handler of a WebSocket."""

ROUTES: tuple[Route, ...] = (
    ("POST", "/v1/chat/completions", chat.create),
    ("POST", "/v1/completions", completions.create),
    ("POST", "/v1/audio/speech", speech.create),
    ("POST", "/v1/audio/transcriptions", transcriptions.transcribe),
    ("POST", "/v1/audio/translations", transcriptions.translate),
    ("POST", "/v1/images/generations", images.generate),
    ("POST", "/v1/images/edits", edit),
    ("POST", "/v1/images/variations", images.variations),
    ("GET", "/v1/images/files/<token>", picture_file),
    ("GET", "/v1/audio/voices", models.voices),
    ("GET", "/v1/audio/models", models.audio_models),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/<path:name>", models.one_model),
    ("POST", "/v1/load_lora_adapter", loras.load),
    ("POST", "/v1/unload_lora_adapter", loras.unload),
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
    """Return the application of one deployment. ``media`` is ``None`` if the plan has no media stage."""
    options = options or ServerOptions()
    return Application(Services(orchestrator, media, plan, options, Metrics()), ROUTES)


class Application:
    """Routes behind the middleware. :meth:`http` answers exchanges of this project's server; other servers use ASGI.

    A handler runs in its request's own task. When the client leaves, the handler is cancelled, and everything that it
    opened is closed. After a normal reply, all of that is closed in the same task once the reply has been sent.
    """

    def __init__(self, services: Services, routes: Iterable[Route], sockets: Iterable[SocketRoute] = ()) -> None:
        self.services = services
        self._bridge = QuartBridge(services)
        self.quart = self._bridge.quart
        """The Quart application on which an embedder registers further routes. They are behind the middleware like the
        others."""
        self._direct: dict[tuple[str, str], Handler] = {}
        self._sockets = dict(sockets)
        self._middleware = Middleware(services.options, services.plan.limits, services.metrics)
        for method, path, handler in routes:
            self._bridge.add(method, path, handler)
            if "<" not in path:
                self._direct[method, path] = handler

    def http(self, exchange: HttpExchange) -> Awaitable[None]:
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
                await self._bridge.websocket(socket, path, context)
        finally:
            current_request.reset(token)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application."""
        if scope["type"] == "lifespan":
            await self._bridge.lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await AsgiExchange(scope, receive, send).run(self.http)
        else:
            await self._asgi_websocket(scope, receive, send)

    def _answer(self, exchange: GuardedExchange) -> Awaitable[None]:
        handler = self._direct.get((exchange.method, exchange.path))
        if handler is None:
            return self._bridge.http(exchange)
        exchange.context.route = exchange.path
        return _direct(self.services, exchange, handler)

    async def _asgi_websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a WebSocket of another ASGI server: there, Quart has all WebSockets."""
        path, context = normal_path(scope["path"]), new_context()
        headers = {name.lower(): value for name, value in reversed(scope["headers"])}
        token = current_request.set(context.id)
        try:
            info = self._middleware.admit(path, headers, context)
            if info is None:
                await self._bridge.asgi_websocket(scope, receive, send, path, context)
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
    """Answer by a handler, directly on the exchange."""
    async with Opened() as opened:
        try:
            if exchange.fields.get(b"content-encoding", b"identity").lower() != b"identity":
                message = "Compressed bodies are not supported: send the body without Content-Encoding."
                raise OmniError(http_error(415, message, param="Content-Encoding"))
            call = Call(exchange.context, exchange.fields, exchange, opened, exchange.write_now)
            reply = await handler(services, call)
        except Exception as error:
            reply = error_reply(error, exchange.context, exchange.method, exchange.path)
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
