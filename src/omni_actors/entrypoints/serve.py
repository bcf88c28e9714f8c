"""What ``serve`` runs: the stages, the application and its server, from launch to the last worker's end."""

from __future__ import annotations

import logging
import signal
from functools import partial

import trio

from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.loading import show_loading
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import serve
from omni_actors.media.client import MediaService
from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import ErrorInfo, OmniError

TAIL_S = 2.0
"""After the drain the connections have so long to say how their requests ended."""

log = logging.getLogger("omni_actors.serve")


def run_server(plan: Plan, options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT. Blocks; call it from the main thread.

    ``/live`` answers at once, ``/ready`` says 503 until the stages are loaded, and the URL is printed when they are. A
    signal drains: no new request is taken, those in flight have ``limits.drain_s``; a second signal ends it at once.
    Raises :class:`OmniError` when the address is taken or a stage cannot start. No process is left in any case.
    """
    trio.run(_main, plan, options)


async def _main(plan: Plan, options: ServerOptions) -> None:
    started = trio.current_time()
    async with open_orchestrator(plan, log_level=options.log_level) as orchestrator:
        media = MediaService(orchestrator.query_media) if plan.media is not None else None
        app = build_app(orchestrator, media, plan, options)
        stop = trio.Event()
        ready = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_signals, orchestrator, plan, stop, ready, nursery.cancel_scope)
            if media is not None:
                nursery.start_soon(media.run)
            serving = partial(
                serve, app, options.host, options.port, grace_s=plan.limits.drain_s + TAIL_S, shutdown=stop.wait
            )
            async with trio.open_nursery() as server:
                try:
                    urls = await server.start(serving)
                except OSError as error:
                    raise _cannot_listen(options, error) from None
                await show_loading(orchestrator, plan)
                ready.set()
                took = trio.current_time() - started
                print(f"Serving {plan.served_model_name} on {urls[0]} (ready in {took:.1f} s)", flush=True)
            nursery.cancel_scope.cancel()


async def _signals(
    orchestrator: Orchestrator, plan: Plan, stop: trio.Event, ready: trio.Event, everything: trio.CancelScope
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async with trio.open_nursery() as nursery:
            async for number in received:
                if stop.is_set() or not ready.is_set():
                    log.warning("%s: ending now", signal.Signals(number).name)
                    everything.cancel()
                    return
                log.info("%s: requests in flight may finish", signal.Signals(number).name)
                stop.set()
                nursery.start_soon(_drain, orchestrator, plan, everything)


async def _drain(orchestrator: Orchestrator, plan: Plan, everything: trio.CancelScope) -> None:
    """The server would wait for idle connections too; once no request is in flight there is nothing to wait for."""
    await orchestrator.drain(plan.limits.drain_s)
    await trio.sleep(TAIL_S)
    everything.cancel()


def _cannot_listen(options: ServerOptions, error: OSError) -> OmniError:
    message = f"Cannot listen on {options.host}:{options.port}: {error.strerror or error}."
    return OmniError(ErrorInfo(message=message, type="configuration_error", code="cannot_listen"))
