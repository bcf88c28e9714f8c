"""The library without a server: :func:`open_omni` under trio, :class:`Omni` for code that blocks.

Both run the same worker processes as ``serve``.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import trio

from omni_actors.actors.background import background
from omni_actors.entrypoints.sayable import check_text
from omni_actors.media.client import MediaService
from omni_actors.media.limits import read_limits
from omni_actors.media.questions import How
from omni_actors.media.wav import wav_header
from omni_actors.orchestrator import Orchestrator, RequestStream, open_orchestrator
from omni_actors.pipelines.factory import missing_devices, resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.versions import check_versions
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import Prompt, Sampling, Speech, Transcription
from omni_actors.protocol.request import Completed, MediaChunk, MediaRef, Request, TextDelta, Usage

T = TypeVar("T")

_NEUTRAL = Speech()


@dataclass(slots=True)
class Choice:
    """One completion of a prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(slots=True)
class Output:
    """Everything that a request made. ``pcm`` is little-endian signed 16-bit audio at ``sample_rate`` Hz."""

    choices: list[Choice]
    pcm: bytes = b""
    sample_rate: int = 0
    channels: int = 1
    usage: dict[str, Usage] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.choices[0].text if self.choices else ""

    def wav(self) -> bytes:
        """The audio as a WAV file."""
        return wav_header(self.sample_rate, self.channels, len(self.pcm)) + self.pcm


class AsyncOmni:
    """A deployment in this process's trio loop, made by :func:`open_omni`."""

    def __init__(self, orchestrator: Orchestrator, media: MediaService) -> None:
        self.orchestrator = orchestrator
        self.media = media

    @property
    def plan(self) -> Plan:
        return self.orchestrator.plan

    def open(self, request: Request) -> RequestStream:
        """A request whose events are received as they come: ``async with omni.open(request) as stream``."""
        return self.orchestrator.open(request)

    async def generate(self, request: Request, *, patient: bool = False) -> Output:
        """A request's whole result. Raises :class:`OmniError`; cancelling it cancels the work everywhere.

        Where the deployment is full it is refused (429), or, if ``patient``, waits for another request's release.
        """
        while True:
            try:
                async with self.open(request) as stream:
                    return await collect(stream)
            except OmniError as error:
                if not patient or error.info.code != "overloaded" or not self.orchestrator.inflight:
                    raise
            await self.orchestrator.vacant.park()

    async def decode(
        self, audio: bytes | Path, *, modality: str = "audio", rate: int | None = None, how: How | None = None
    ) -> MediaRef:
        """A file as input of a request (``Request.media``): audio, resampled to ``rate`` Hz or to 16 kHz, an ``image``
        or a ``video``, taken as ``how`` says."""
        data = await trio.Path(audio).read_bytes() if isinstance(audio, Path) else audio
        return await self.media.decode(data, modality=modality, how=how or How(rate=rate))


async def collect(stream: RequestStream) -> Output:
    """Receive a stream to its end."""
    output = Output([])
    pcm = bytearray()
    async for event in stream:
        match event:
            case TextDelta():
                while len(output.choices) <= event.index:
                    output.choices.append(Choice())
                choice = output.choices[event.index]
                choice.text += event.text
                choice.token_ids += event.token_ids
                choice.finish_reason = event.finish_reason or choice.finish_reason
            case MediaChunk():
                pcm += event.data
                output.sample_rate = event.meta["sample_rate"]
                output.channels = event.meta.get("channels", 1)
            case Completed():
                output.usage = event.usage
    output.pcm = bytes(pcm)
    return output


@asynccontextmanager
async def open_omni(
    model: str | Plan | None = None,
    *,
    overlay: Path | None = None,
    overrides: Sequence[str] = (),
    platform: str | None = None,
    log_level: str = "WARNING",
) -> AsyncIterator[AsyncOmni]:
    """Start a model's stages and give the deployment when all are ready; leaving the block ends every process.

    ``model`` is a pipeline's name, a model's folder, a resolved plan, or ``None`` for the demo (whose weights must have
    been pulled). Raises :class:`OmniError` when it cannot be resolved or a stage cannot start.

    The machine is looked at in a thread, as a driver or a plug-in may take its time; cancelling waits for that.
    """

    def planned() -> Plan:
        found = (
            model
            if isinstance(model, Plan)
            else resolve(model, overlay=overlay, overrides=overrides, platform=platform)
        )
        check_versions(found)
        if missing := missing_devices(found):
            raise PlanError("\n".join(missing))
        return found

    plan = await trio.to_thread.run_sync(planned)
    async with open_orchestrator(plan, log_level=log_level) as orchestrator:
        await orchestrator.wait_ready()
        limits = read_limits(plan.media.options) if plan.media is not None else None
        media = MediaService(orchestrator.query_media, limits=limits)
        async with background() as tasks:
            tasks.start_soon(media.run)
            yield AsyncOmni(orchestrator, media)


class Omni:
    """A deployment for code that blocks. Use it as a context manager (or call :meth:`close`).

    It owns one thread that runs a trio loop; the worker processes end with it. Methods may be called from any thread;
    Ctrl-C in one that waits cancels what it waits for.
    Raises what :func:`open_omni` raises.

    >>> with Omni("demo") as omni:  # doctest: +SKIP
    ...     print(omni.generate("What is the capital of France?")[0].text)
    """

    def __init__(self, model: str | Plan | None = None, **options: Any) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._abandoned = False
        self._omni: AsyncOmni
        self._stop: trio.Event
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(model, options), name="omni", daemon=True)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C while it loads
            self._abandoned = True
            if self._token is not None:
                self._token.run_sync_soon(self._scope.cancel)
            self._thread.join()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self, model: str | Plan | None, options: dict[str, Any]) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            with self._scope:
                if self._abandoned:
                    return
                async with open_omni(model, **options) as self._omni:
                    self._ready.set()
                    await self._stop.wait()

        try:
            trio.run(main)
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    def generate(
        self,
        prompts: str | list[dict[str, Any]] | Sequence[str | list[dict[str, Any]]],
        sampling: Sampling | None = None,
        *,
        modalities: Sequence[str] = ("text",),
        voice: str = "default",
        progress: bool = True,
        on_done: Callable[[int, Output], None] | None = None,
    ) -> list[Output]:
        """Answer chat prompts, all at once, in the order given. A prompt is a string (one user message) or a list of
        messages; one alone need not be in a list.

        Shows a progress bar on a terminal unless ``progress`` is false. The first failure cancels the rest and is
        raised. ``on_done`` is called in this deployment's thread as each finishes.
        """
        alone = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], dict))
        asked: list[Any] = [prompts] if alone else list(prompts)
        requests = []
        for prompt in asked:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            params: dict[str, Any] = {"prompt": Prompt(messages=messages), "sampling": sampling or Sampling()}
            if "audio" in modalities:
                params["speech"] = Speech(voice=voice)
            requests.append(Request(task="chat", outputs=tuple(modalities), params=params))
        return self._together(requests, progress, on_done)

    def speak(
        self,
        text: str,
        *,
        voice: str = "default",
        speed: float = 1.0,
        reference: bytes | Path | None = None,
        **fields: Any,
    ) -> Output:
        """Text to speech. ``reference`` is the audio file (its bytes or its path) whose voice is cloned, where the
        model can; ``fields`` are further ones of the section :class:`~omni_actors.protocol.params.Speech`. Raises
        :class:`OmniError` for one that the model does not honour, and for a text that has nothing to say."""
        check_text(text)
        speech = Speech(text=text, voice=voice, speed=speed, reference=reference is not None, **fields)
        for name, value in msgspec.structs.asdict(speech).items():
            if value != getattr(_NEUTRAL, name) and not self._omni.plan.pipeline.honours(name):
                raise invalid_request(f"This model does not honour '{name}'.", name, "unsupported_parameter")

        async def run() -> Output:
            clips = () if reference is None else (await self._omni.decode(reference, rate=self._omni.plan.sample_rate),)
            inputs = ("text", "audio") if clips else ("text",)
            asked = Request(task="speech", inputs=inputs, outputs=("audio",), params={"speech": speech}, media=clips)
            try:
                return await self._omni.generate(asked)
            finally:
                await self._omni.media.discard(clips)  # in case that no stage has taken it

        return self._call(run)

    def transcribe(self, audio: bytes | Path) -> Output:
        """Speech to text, of the bytes or the path of an audio file."""

        async def run() -> Output:
            clip = await self._omni.decode(audio)
            params = {"transcription": Transcription()}
            try:
                return await self._omni.generate(
                    Request(task="transcription", inputs=("audio",), params=params, media=(clip,))
                )
            finally:
                await self._omni.media.discard((clip,))  # in case that no stage has taken it

        return self._call(run)

    def close(self) -> None:
        """End every process and the thread. Idempotent."""
        if self._thread.is_alive() and self._token is not None:
            self._token.run_sync_soon(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _together(
        self, requests: list[Request], progress: bool, on_done: Callable[[int, Output], None] | None
    ) -> list[Output]:
        from rich.progress import Progress

        outputs: list[Output | None] = [None] * len(requests)
        limit = trio.CapacityLimiter(self._omni.plan.limits.max_inflight)

        async def run() -> None:
            failure: list[Exception] = []

            async def one(i: int) -> None:
                try:
                    async with limit:
                        outputs[i] = output = await self._omni.generate(requests[i], patient=True)
                    bar.advance(task)
                    if on_done is not None:
                        on_done(i, output)
                except Exception as error:  # raised below, not in a group
                    failure.append(error)
                    nursery.cancel_scope.cancel()

            async with trio.open_nursery() as nursery:
                for i in range(len(requests)):
                    nursery.start_soon(one, i)
            if failure:
                raise failure[0]

        with Progress(transient=True, disable=not progress) as bar:
            task = bar.add_task("generating", total=len(requests))
            self._call(run)
        return [output for output in outputs if output is not None]

    def _call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        if not self._thread.is_alive():
            raise invalid_request("this Omni is closed")
        scope = trio.CancelScope()
        result: list[T] = []

        async def run() -> None:
            with scope:
                result.append(await function(*args))

        token = self._token
        assert token is not None
        try:
            trio.from_thread.run(run, trio_token=token)
        except KeyboardInterrupt:
            token.run_sync_soon(scope.cancel)
            raise
        return result[0]


__all__ = ["AsyncOmni", "Choice", "Omni", "OmniError", "Output", "open_omni"]
