"""The HTTP server inside a trio program, beside the program's own requests: :func:`http_app` and :func:`serve_http`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from omni_actors.entrypoints.app import Application, build_app
from omni_actors.entrypoints.middleware import PROBES
from omni_actors.entrypoints.offline import AsyncOmni
from omni_actors.entrypoints.openai.errors import http_error_body
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.serve import cannot_listen, tls_of, warn_of_open_doors
from omni_actors.entrypoints.server import serve


def http_app(omni: AsyncOmni, options: ServerOptions | None = None) -> Application:
    """Return the application that answers HTTP requests with a deployment.

    Routes of the program's own are registered on ``app.quart``, a Quart application; they stand behind the same checks
    of keys and origins. The application speaks ASGI too, for a server of the program's choice that runs on trio.
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
    """Serve a deployment over HTTP until ``shutdown`` returns, or until this is cancelled.

    Args:
        omni: The deployment, which goes on serving the program itself.
        options: Addresses, keys and limits; by default port 8000 of this machine alone.
        app: What :func:`http_app` made, where routes were added to it; its options are those that it was made with.
        shutdown: Waited for; when it returns no connection is accepted any more, and answers that are under way have
            ``grace_s`` seconds. Without it the server runs until it is cancelled.
        grace_s: By default the deployment's ``limits.drain_s``.
        task_status: Gets the URLs once connections are accepted: ``urls = await nursery.start(serve_http, omni)``.

    Raises:
        OmniError: An address or a certificate cannot be used.

    Cancellation closes every connection at once and cancels what is answered there. Signals are left to the program.
    The admin routes take ``options.admin_keys``; no key file is written.
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
    """Hears that the server listens, and hands that on."""

    def __init__(self, options: ServerOptions, told: trio.TaskStatus[list[str]]) -> None:
        self.listening = False
        self._options = options
        self._told = told

    def started(self, value: list[str] | None = None) -> None:
        assert value is not None
        self.listening = True
        warn_of_open_doors(value, self._options)
        self._told.started(value)
