"""The HTTP server inside a trio program, beside the program's own requests: :func:`http_app` and :func:`serve_http`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from omni_actors.entrypoints.app import Application, build_app
from omni_actors.entrypoints.middleware import PROBES
from omni_actors.entrypoints.offline import AsyncOmni
from omni_actors.entrypoints.openai.errors import http_error_body
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.serve import cannot_listen, tls_of, warn_if_open
from omni_actors.entrypoints.server import serve


def http_app(omni: AsyncOmni, options: ServerOptions | None = None) -> Application:
    """Return the application that answers HTTP requests with a deployment.

    The application speaks ASGI too, for a server of the program's choice that runs on trio. Further routes are
    registered on ``app.quart``, a Quart application, and stand behind the same checks of keys and origins; see
    :func:`serve_http` for an example.

    Args:
        omni: The deployment, which goes on serving the program itself.
        options: Keys, origins and limits; by default no key is needed.

    Returns:
        The application, for :func:`serve_http` or for another ASGI server.
    """
    media = omni.media if omni.plan.media is not None else None
    return build_app(omni.orchestrator, media, omni.plan, options)


async def serve_http(
    omni: AsyncOmni,
    options: ServerOptions | None = None,
    *,
    app: Application | None = None,
    shutdown: Callable[[], Awaitable[None]] | None = None,
    grace_s: float | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a deployment over HTTP until ``shutdown`` returns, or until this function is cancelled.

    >>> from functools import partial
    >>> import trio
    >>> from omni_actors import ServerOptions, http_app, open_omni, serve_http
    >>> async def main() -> None:
    ...     async with open_omni("stub-voice") as omni, trio.open_nursery() as nursery:
    ...         app = http_app(omni, ServerOptions(port=0, api_keys=("a-long-random-text",)))
    ...         @app.quart.get("/hello")
    ...         async def hello() -> str:
    ...             return "hello"
    ...         (url,) = await nursery.start(partial(serve_http, omni, app=app))
    ...         print(url.startswith("http://127.0.0.1:"))
    ...         nursery.cancel_scope.cancel()
    >>> trio.run(main)
    True

    Args:
        omni: The deployment, which goes on serving the program itself.
        options: Addresses, keys and limits; by default port 8000 of this machine alone.
        app: The application of :func:`http_app`, if routes were added to it; its own options apply to requests.
        shutdown: Waited for; when it returns no connection is accepted any more, and responses under way have
            ``grace_s`` seconds. Without it the server runs until cancelled.
        grace_s: Seconds for responses under way; by default the deployment's ``limits.drain_s``.
        task_status: Gets the URLs once connections are accepted: ``urls = await nursery.start(serve_http, omni)``.

    Raises:
        OmniError: An address or a certificate cannot be used.

    Cancellation closes every connection at once and cancels the handlers. Signals are left to the program. The admin
    routes take ``options.admin_keys``; no key file is written.
    """
    options = options or (ServerOptions() if app is None else app.services.options)
    app = app or http_app(omni, options)

    announced = _Announced(options, task_status)
    try:
        await serve(
            app,
            options.hosts,
            options.port,
            limits=options.limits,
            metrics=app.services.metrics,
            probes=PROBES,
            error_body=http_error_body,
            unix_path=options.unix_path,
            tls=tls_of(options),
            grace_s=omni.plan.limits.drain_s if grace_s is None else grace_s,
            shutdown=shutdown,
            task_status=announced,
        )
    except OSError as error:
        if announced.listening:
            raise
        raise cannot_listen(options, error) from None


class _Announced(trio.TaskStatus[list[str]]):
    """A task status that notes that the server listens, and passes the URLs on."""

    def __init__(self, options: ServerOptions, inner: trio.TaskStatus[list[str]]) -> None:
        self.listening = False
        self._options = options
        self._inner = inner

    def started(self, value: list[str] | None = None) -> None:
        assert value is not None
        self.listening = True
        warn_if_open(value, self._options)
        self._inner.started(value)
