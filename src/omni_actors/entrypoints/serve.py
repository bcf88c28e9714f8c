"""The command ``serve``: stages, application and server, from launch to the end of the last worker."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

import trio

from omni_actors.entrypoints.admin import keyfile
from omni_actors.entrypoints.admin.access import is_loopback
from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.loading import show_loading
from omni_actors.entrypoints.middleware import PROBES
from omni_actors.entrypoints.openai.errors import http_error_body
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import hypercorn, serve
from omni_actors.entrypoints.server.listeners import tls_context
from omni_actors.media.limits import read_limits
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import ErrorInfo, OmniError

GC_OBJECTS = 10_000
"""Net new containers before the garbage collector runs. Requests end without cycles, but the objects of requests in
flight would trigger the collector every 15 requests at Python's default of 700: a fifteenth of this process' time."""

TAIL_S = 0.5
"""Seconds after the drain in which connections can tell their clients how requests ended."""

END_S = 1.5
"""Seconds after the drain until everything must have ended; a worker deep in a step is killed then."""

AT_ONCE_S = 5.0
"""Seconds for an immediate end, after which connections of clients that do not read are abandoned."""

log = logging.getLogger("omni_actors.serve")


def run_server(plan: Plan, options: ServerOptions) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP (unless SIGHUP is ignored, as under nohup). Blocks; call from the main
    thread.

    ``/live`` answers at once, ``/ready`` answers 503 until the stages are loaded, and then the URL is printed. A signal
    starts the drain: no new request is accepted, requests in flight have ``limits.drain_s``. A second signal ends the
    server at once. Raises :class:`OmniError` if the address is taken or a stage cannot start. No process is left in any
    case.
    """
    trio.run(_main, plan, options)


@dataclass(slots=True)
class _Ending:
    """The state of a requested end: in order, or (``immediate``) with the workers killed."""

    immediate: trio.CancelScope
    requested: trio.Event = field(default_factory=trio.Event)
    over: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    ready: bool = False


async def _main(plan: Plan, options: ServerOptions) -> None:
    async with trio.open_nursery() as nursery:
        ending = _Ending(nursery.cancel_scope)
        nursery.start_soon(_signals, plan, ending)
        try:
            await _serve(plan, options, ending)
        finally:
            ending.over.cancel()
        nursery.cancel_scope.cancel()


async def _signals(plan: Plan, ending: _Ending) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # sent when the terminal closes; nohup ignores it
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as received:
        async for number in received:
            if ending.requested.is_set() or not ending.ready:
                log.warning("%s: ending now", signal.Signals(number).name)
                ending.immediate.cancel()
                with ending.over:
                    await trio.sleep(AT_ONCE_S)
                    log.warning("a client does not read and holds its connection open: ending without it")
                    logging.shutdown()
                    os._exit(1)  # the workers end with this process, however it ends
                return
            log.info("%s: draining, requests in flight may finish", signal.Signals(number).name)
            ending.immediate.deadline = trio.current_time() + plan.limits.drain_s + END_S
            ending.requested.set()


async def _serve(plan: Plan, options: ServerOptions, ending: _Ending) -> None:
    started = trio.current_time()
    tls = tls_of(options)
    admin_key = keyfile.make_key()
    options = replace(options, admin_keys=(*options.admin_keys, admin_key))
    _allow_descriptors()
    async with open_orchestrator(plan, log_level=options.log_level) as orchestrator:
        media = None
        if plan.media is not None:
            media = MediaService(orchestrator.query_media, limits=read_limits(plan.media.options))
        app = build_app(orchestrator, media, plan, options)
        async with contextlib.AsyncExitStack() as published, trio.open_nursery() as nursery:
            if media is not None:
                nursery.start_soon(media.run)
            patient = None if options.server == "builtin" else nursery.cancel_scope
            nursery.start_soon(_drain, orchestrator, plan, ending, patient)

            async def to_the_end(*, task_status: trio.TaskStatus[list[str]]) -> None:
                ours = partial(
                    serve,
                    limits=options.limits,
                    metrics=app.services.metrics,
                    probes=PROBES,
                    error_body=http_error_body,
                )
                await (ours if options.server == "builtin" else hypercorn.serve)(
                    app,
                    options.hosts,
                    options.port,
                    unix_path=options.unix_path,
                    tls=tls,
                    grace_s=plan.limits.drain_s + TAIL_S,
                    shutdown=ending.requested.wait,
                    task_status=task_status,
                )
                nursery.cancel_scope.cancel()

            try:
                urls = await nursery.start(to_the_end)
            except OSError as error:
                raise cannot_listen(options, error) from None
            where = " and ".join(urls)
            log.info("listening on %s", where)
            published.enter_context(keyfile.published(admin_key, urls))
            warn_if_open(urls, options)
            await show_loading(orchestrator, plan)
            gc.collect()
            gc.freeze()  # a full collection of the permanent objects would stop the loop for some 30 ms now and then
            gc.set_threshold(GC_OBJECTS)
            ending.ready = True
            took = trio.current_time() - started
            with contextlib.suppress(OSError):  # a full disk behind stdout is no reason not to serve
                print(f"Serving {plan.served_model_name} on {where} (ready in {took:.1f} s)", flush=True)


async def _drain(orchestrator: Orchestrator, plan: Plan, ending: _Ending, patient: trio.CancelScope | None) -> None:
    """Drain when asked. ``patient`` is the scope of a server that would also wait for idle connections; it is cancelled
    once no request is in flight."""
    await ending.requested.wait()
    await orchestrator.drain(plan.limits.drain_s)
    if patient is not None:
        await trio.sleep(TAIL_S)
        patient.cancel()


def warn_if_open(urls: Sequence[str], options: ServerOptions) -> None:
    """Warn if other machines can reach the server and no key is needed."""
    beyond = [url for url in urls if not url.startswith("unix:") and not is_loopback(urlsplit(url).hostname)]
    if beyond and not options.api_keys:
        log.warning(
            "listening on %s without an API key: anybody who reaches this address may use the model "
            "(set one with serve --api-key KEY or OMNI_ACTORS_API_KEY)",
            ", ".join(beyond),
        )


def _allow_descriptors() -> None:
    """Raise the soft limit of open files: the usual 1,024 is meant for programs that use select()."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def tls_of(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the TLS context of a server's options, ``None`` without a certificate. Raises :class:`OmniError`."""
    if options.tls_certificate is None:
        return None
    try:
        return tls_context(options.tls_certificate, options.tls_key)
    except OSError as error:
        message = f"Cannot use the certificate {options.tls_certificate}: {error.strerror or error}."
        raise OmniError(ErrorInfo(message=message, type="configuration_error", code="bad_certificate")) from None


def cannot_listen(options: ServerOptions, error: OSError) -> OmniError:
    """Return the error that says which address could not be bound, and why."""
    where = error.filename or options.unix_path or f"{' and '.join(options.hosts)}, port {options.port}"
    message = f"Cannot listen on {where}: {error.strerror or error}."
    return OmniError(ErrorInfo(message=message, type="configuration_error", code="cannot_listen"))
