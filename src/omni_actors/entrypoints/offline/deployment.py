"""A deployment in a trio program: :func:`open_omni` and :class:`AsyncOmni`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.progress import Progress

from omni_actors.actors.background import background
from omni_actors.entrypoints.offline.arguments import check_open_arguments, check_request
from omni_actors.entrypoints.offline.calls import Batch, Call, prepared
from omni_actors.entrypoints.offline.output import Output, collect
from omni_actors.entrypoints.offline.verbs import Batches, Verbs
from omni_actors.entrypoints.weights import DeploymentSpec, by_log, check_plan, ready_to_start
from omni_actors.media.limits import read_limits
from omni_actors.media.questions import How
from omni_actors.media.service.client import MediaService
from omni_actors.orchestrator import Orchestrator, RequestStream, open_orchestrator
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import MediaRef, Request


class AsyncOmni(Verbs[Coroutine[Any, Any, Output]], Batches[Coroutine[Any, Any, list[Output]]]):
    """A deployment in this program's trio loop, made by :func:`open_omni`. Its verbs are awaited.

    The verbs are those of :class:`~omni_actors.entrypoints.offline.verbs.Verbs` and ``generate``. Requests are streamed
    by ``async with omni.stream.chat(…) as stream``. Cancelling a verb ends the work in every worker.
    """

    def __init__(self, orchestrator: Orchestrator, media: MediaService) -> None:
        self.orchestrator = orchestrator
        self.media = media
        self.stream = Streams(self)
        """The same verbs for requests whose events are received as they arrive: ``async with omni.stream.chat(…) as
        stream``."""

    @property
    def plan(self) -> Plan:
        """The plan of the deployment."""
        return self.orchestrator.plan

    def open(self, request: Request) -> RequestStream:
        """Return the stream of a request, to be entered: ``async with omni.open(request) as stream``.

        Args:
            request: The request.

        Returns:
            A stream of events; leaving its block cancels the rest of the request.

        Raises:
            OmniError: Status 400 for a field of a wrong type or a section that no stage reads. Entering the block
                raises
                the errors of admission (408, 429, 503).
        """
        return self.orchestrator.open(check_request(self.plan, request))

    async def decode(
        self, audio: bytes | Path, *, modality: str = "audio", rate: int | None = None, how: How | None = None
    ) -> MediaRef:
        """Decode a file for :attr:`~omni_actors.Request.media` of a request that is put together by hand.

        Args:
            audio: The file's bytes, or its path.
            modality: ``audio``, ``image`` or ``video``.
            rate: Rate in Hz that audio is resampled to; by default 16 kHz.
            how: Further options, in place of ``rate``.

        Returns:
            A reference to the decoded medium, which is freed once a request has used it.

        Raises:
            OmniError: The file cannot be decoded, or is too large.
            OSError: The file cannot be read.

        Cancellation frees the medium.
        """
        data = await trio.Path(audio).read_bytes() if isinstance(audio, Path) else audio
        return await self.media.decode(data, modality=modality, how=how or How(rate=rate))

    async def _ask(self, call: Call) -> Output:
        async with prepared(call, self.plan, self.media) as request, self.open(request) as stream:
            return await collect(stream, call.watcher)

    async def _ask_all(self, batch: Batch) -> list[Output]:
        calls, on_done = batch.calls(), batch.on_done
        outputs: list[Output | None] = [None] * len(calls)
        limit = trio.CapacityLimiter(self.plan.limits.max_inflight)
        failure: list[Exception] = []
        console = Console(stderr=True)

        async def one(place: int) -> None:
            try:
                async with limit:
                    outputs[place] = output = await self._when_there_is_room(calls[place])
                bar.advance(task)
                if on_done is not None:
                    on_done(place, output)
            except Exception as error:  # raised below, not in a group
                failure.append(error)
                nursery.cancel_scope.cancel()

        with Progress(console=console, transient=True, disable=not (batch.progress and console.is_terminal)) as bar:
            task = bar.add_task("generating", total=len(calls))
            async with trio.open_nursery() as nursery:
                for place in range(len(calls)):
                    nursery.start_soon(one, place)
        if failure:
            raise failure[0]
        return [output for output in outputs if output is not None]

    async def _when_there_is_room(self, call: Call) -> Output:
        """Run a call; if the deployment is full, wait for the release of another request and try again."""
        while True:
            try:
                return await self._ask(call)
            except OmniError as error:
                if error.info.code != "overloaded" or not self.orchestrator.inflight:
                    raise
            await self.orchestrator.vacant.park()


class Streams(Verbs[AbstractAsyncContextManager[RequestStream]]):
    """``AsyncOmni.stream``: each verb returns a block to enter, in which the request's events are received."""

    def __init__(self, omni: AsyncOmni) -> None:
        self._omni = omni

    @asynccontextmanager
    async def _ask(self, call: Call) -> AsyncIterator[RequestStream]:
        omni = self._omni
        async with prepared(call.streamed(), omni.plan, omni.media) as request, omni.open(request) as stream:
            yield stream


@asynccontextmanager
async def open_omni(
    model: str | os.PathLike[str] | Plan | None = None,
    *,
    overlay: str | os.PathLike[str] | None = None,
    overrides: Sequence[str | Override] = (),
    platform: str | None = None,
    revision: str | None = None,
    offline: bool = False,
    log_level: str = "WARNING",
) -> AsyncIterator[AsyncOmni]:
    """Start a model's stages under trio and give the deployment when all are ready; leaving the block ends every
    process.

    >>> import trio
    >>> from omni_actors import Sampling, open_omni
    >>> async def main() -> None:
    ...     async with open_omni("stub-voice") as omni:
    ...         print((await omni.chat("Hello", Sampling(max_tokens=3))).text)
    ...         async with omni.stream.complete("Once upon a time", Sampling(max_tokens=2)) as stream:
    ...             async for event in stream:
    ...                 print(type(event).__name__)
    >>> trio.run(main)
    sea small sea
    TextDelta
    TextDelta
    Completed

    Args:
        model: A pipeline's name, a model's folder, the public name of a checkpoint, a resolved plan, or ``None`` for
            the demo. Missing weights of the demo and of public checkpoints are fetched, with messages in the log; a
            plan's weights must be present.
        overlay: Path of a deploy file.
        overrides: Settings as ``path=value``, with priority over the deploy file.
        platform: Name of the platform; by default the detected one.
        revision: Branch, tag or commit of a public checkpoint; by default its main branch.
        offline: Fetch no weights. For weights of the hub, the variable ``HF_HUB_OFFLINE`` has the same effect.
        log_level: Level of the workers' logs, which go to standard error. Nothing is written to standard output.

    Raises:
        TypeError: An argument has a wrong type.
        OmniError: The deployment cannot be resolved, or a stage cannot start.
        RuntimeError: The program does not run under trio.

    Cancellation: the machine is examined in a thread, because a driver or a plug-in may be slow. Cancelling waits for
    that thread, and for pip while it fetches the demo's weights. Everything else is cancelled at once.
    """
    model, overlay = check_open_arguments(model, overlay, overrides, platform, revision, offline, log_level)
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "open_omni() needs trio. Under asyncio use omni_actors.open_omni_asyncio(), in code that blocks Omni()."
        )

    def planned() -> Plan:
        if isinstance(model, Plan):
            check_plan(model)
            return model
        spec = DeploymentSpec(model, overlay, overrides, platform, revision=revision, offline=offline)
        return ready_to_start(spec, by_log(trio.from_thread.check_cancelled))

    plan = await trio.to_thread.run_sync(planned)
    async with open_orchestrator(plan, log_level=log_level) as orchestrator:
        await orchestrator.wait_ready()
        limits = read_limits(plan.media.options) if plan.media is not None else None
        media = MediaService(orchestrator.query_media, limits=limits)
        async with background() as tasks:
            tasks.start_soon(media.run)
            yield AsyncOmni(orchestrator, media)
