"""The application: Quart on trio behind the guard, and its routes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import trio
from quart import Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.exceptions import HTTPException

from omni_actors.entrypoints import probes
from omni_actors.entrypoints.guard import CONTEXT, DISCARD_S, Guard
from omni_actors.entrypoints.http import BrokenStream, Call, Reply, RequestContext
from omni_actors.entrypoints.openai import chat, completions, models, speech, transcriptions
from omni_actors.entrypoints.openai.errors import error_body, error_headers, http_error, internal_error
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.services import Orchestration, Services
from omni_actors.media.client import MediaService
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.telemetry.metrics import Metrics

Handler = Callable[..., Awaitable[Reply]]

_STACK = "omni_actors.stack"
_BODY_IN = "omni_actors.body.in"
_BODY = "omni_actors.body"
_BODY_ENDED = "omni_actors.body.ended"
_BODY_PIECES = 4
"""Pieces of a body (64 KiB each at most) that wait for their reader."""

log = logging.getLogger("omni_actors.http")


def build_app(
    orchestrator: Orchestration, media: MediaService | None, plan: Plan, options: ServerOptions | None = None
) -> QuartTrio:
    """The ASGI application of one deployment. ``media`` is ``None`` where the plan has no media stage.

    A handler runs in its request's own task; the client's leaving cancels it, and with it what it opened.
    """
    options = options or ServerOptions()
    services = Services(orchestrator, media, plan, options, Metrics())
    app = _App(__name__, static_folder=None)
    app.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None, MAX_CONTENT_LENGTH=None)
    app.register_error_handler(Exception, _render)
    for method, path, handler in ROUTES:
        app.add_url_rule(path, f"{method} {path}", _view(services, handler), methods=[method])
    app.asgi_app = Guard(app.asgi_app, options, plan.limits.max_body_bytes, services.metrics)  # type: ignore[assignment, method-assign, arg-type]
    return app


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat.create),
    ("POST", "/v1/completions", completions.create),
    ("POST", "/v1/audio/speech", speech.create),
    ("POST", "/v1/audio/transcriptions", transcriptions.transcribe),
    ("POST", "/v1/audio/translations", transcriptions.translate),
    ("GET", "/v1/audio/voices", models.voices),
    ("GET", "/v1/audio/models", models.audio_models),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/<path:name>", models.one_model),
    ("GET", "/live", probes.live),
    ("GET", "/ready", probes.ready),
    ("GET", "/health", probes.health),
    ("GET", "/version", probes.version),
    ("GET", "/metrics", probes.metrics),
)


class _Connection(TrioASGIHTTPConnection):
    """Changes three things of Quart's. The request's body comes through a channel (the sender is held back when its
    reader is slow), and a client that leaves is a cancellation in every version of Quart. What a handler opened is
    closed once its response is sent, in the same task; what is left of the request's body is thrown away before that.
    A body that breaks off leaves the response unfinished, which the server turns into an abnormal end."""

    async def handle_messages(self, nursery: trio.Nursery, request: Any, receive: Any) -> None:  # type: ignore[override]
        body: trio.MemorySendChannel[bytes] = request.scope[_BODY_IN]
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                nursery.cancel_scope.cancel()
                return
            if data := message.get("body", b""):
                try:
                    await body.send(data)
                except trio.BrokenResourceError:
                    pass  # the answer does not depend on it
            if not message.get("more_body", False):
                body.close()
                request.scope[_BODY_ENDED].set()

    async def __call__(self, receive: Any, send: Any) -> None:
        scope = cast(dict[str, Any], self.scope)
        scope[_BODY_IN], scope[_BODY] = trio.open_memory_channel[bytes](_BODY_PIECES)
        scope[_BODY_ENDED] = trio.Event()
        await super().__call__(receive, send)

    async def handle_request(self, nursery: trio.Nursery, request: Any, send: Any) -> None:  # type: ignore[override]
        async with AsyncExitStack() as stack:
            request.scope[_STACK] = stack
            await super().handle_request(nursery, request, send)

    async def _send_response(self, send: Any, response: Any) -> None:
        scope = cast(dict[str, Any], self.scope)
        scope[_BODY].close()
        with trio.move_on_after(DISCARD_S):  # a client that still sends would not see the answer
            await scope[_BODY_ENDED].wait()
        try:
            await super()._send_response(send, response)
        except BrokenStream:
            return


class _App(QuartTrio):
    asgi_http_class = _Connection


def _view(services: Services, handler: Handler) -> Callable[..., Awaitable[Response]]:
    async def view(**values: str) -> Response:
        context: RequestContext = _scope()[CONTEXT]
        context.route = request.url_rule.rule if request.url_rule is not None else "unmatched"
        call = Call(
            context=context,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=_scope()[_BODY],
            stack=_scope()[_STACK],
        )
        return _response(await handler(services, call, **values))

    return view


def _scope() -> dict[str, Any]:
    """The current request's ASGI scope, with what the guard and the connection put there."""
    return cast(dict[str, Any], request.scope)


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.timeout = None
    for name, value in reply.headers:
        response.headers[name] = value
    return response


async def _render(error: Exception) -> Response:
    """Every failure as OpenAI's JSON. What is unexpected is logged with its traceback; the client gets its id."""
    info: ErrorInfo
    headers: list[tuple[str, str]] = []
    if isinstance(error, OmniError):
        info = error.info
    elif isinstance(error, HTTPException):
        headers = [(name, value) for name, value in error.get_headers() if name.lower() == "allow"]
        info = _of_http(error)
    else:
        context: RequestContext = _scope()[CONTEXT]
        log.error("unexpected failure of %s %r", request.method, request.path, exc_info=error)
        info = internal_error(context.id)
    return _response(Reply(error_body(info), [*error_headers(info), *headers], info.status))


def _of_http(error: HTTPException) -> ErrorInfo:
    status = error.code or 500
    if status == 404:
        return http_error(404, f"No such route: {request.method} {request.path}.", code="not_found")
    if status == 405:
        return http_error(405, f"{request.path} does not take {request.method}.", code="method_not_allowed")
    return http_error(status, error.description or error.name)
