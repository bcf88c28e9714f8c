"""The serving side of the media process. Imports neither numpy nor a codec."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import trio

from omni_actors.media import questions as q
from omni_actors.media.limits import FORMATS, PIECE, Limits, too_long_to_encode, unknown_format
from omni_actors.media.service.fetch import Fetcher
from omni_actors.media.service.uploads import ParsedBody, Sent, Upload, decode_link, ref_of
from omni_actors.media.wav import PcmEncoder
from omni_actors.protocol.errors import OmniError, deadline_exceeded
from omni_actors.protocol.request import MediaRef

log = logging.getLogger(__name__)

A = TypeVar("A")
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
Data = bytes | AsyncIterable[bytes]


class AudioEncoder(Protocol):
    async def feed(self, pcm: bytes) -> bytes:
        """Take PCM (little-endian signed 16 bit, cut anywhere) and give what is encoded so far (often nothing)."""
        ...

    async def finish(self) -> bytes:
        """Give the rest. Once; nothing after it."""
        ...


class MediaService:
    """Decodes, parses and encodes in the media process.

    ``query`` asks the media worker and returns its answer; it may raise :class:`OmniError`. ``limits`` are that
    worker's; they hold for what is encoded here too. Every method raises :class:`OmniError`: 400 with ``param`` for
    what is wrong with the media, 413 and 429 for its bounds, 408 when an answer takes longer than ``answer_s`` seconds
    (``limits.decode_s`` where something is decoded), 503 when the process is gone.

    Cancellation: whatever a cancelled or failed operation has left in the media process is freed by :meth:`run`, which
    must be running in the owner's nursery. What is to be freed is kept in two sets: it cannot be lost to a full queue,
    and leaving an operation never waits.
    """

    def __init__(self, query: Ask, *, limits: Limits | None = None, answer_s: float = 30.0) -> None:
        self._query = query
        self.limits = limits or Limits()
        self._answer_s = answer_s
        self._fetcher = Fetcher(self.limits)
        self._name = secrets.token_hex(8)
        self._tokens = itertools.count(1)
        self._left_owners: set[str] = set()
        self._left_clips: set[int] = set()
        self._left = trio.Event()

    @property
    def fetches(self) -> Mapping[str, int]:
        """How the fetches of URLs ended: ``fetched``, ``refused`` (by the guard) or ``failed``; and their ``bytes``."""
        return self._fetcher.totals

    async def run(self) -> None:
        """Tell the media process what was left behind, until cancelled."""
        while True:
            await self._left.wait()
            self._left = trio.Event()
            owners, clips = tuple(self._left_owners), tuple(self._left_clips)
            self._left_owners.clear()
            self._left_clips.clear()
            try:
                await self._ask(q.Discard(owners=owners, clips=clips))
            except OmniError as error:
                # A process that is gone holds nothing; one that is too busy frees it when its idle time is over.
                log.debug("left to its idle time in the media process: %s", error)

    async def decode(
        self,
        data: Data,
        *,
        modality: str = "audio",
        content_type: str | None = None,
        filename: str | None = None,
        max_seconds: float | None = None,
        how: q.How | None = None,
        param: str | None = "file",
    ) -> MediaRef:
        """Decode a file: a clip of at most ``max_seconds`` (the media stage's own limits hold too), an image or a
        video. It is the caller's, to use in a request or to :meth:`discard`. ``param`` names the field in what is
        refused."""
        async with self.upload(data, param=param) as file:
            return await file.decode(
                modality=modality, content_type=content_type, filename=filename, max_seconds=max_seconds, how=how
            )

    @asynccontextmanager
    async def upload(self, data: Data, *, param: str | None = "file") -> AsyncIterator[Upload]:
        """A file that is brought over first (if it is no small one), to be decoded when more is known of what it is
        for. Left before that, it is freed."""
        async with self._operation() as owner:
            upload = Upload(self, owner, await self._send(data, owner, param), param)
            try:
                yield upload
            finally:
                if upload.held:
                    self.leave(owner)

    async def fetch(
        self,
        url: str,
        *,
        modality: str = "audio",
        max_seconds: float | None = None,
        how: q.How | None = None,
        param: str | None = "url",
    ) -> MediaRef:
        """Decode what a client's http(s) URL leads to, as :meth:`decode` does. Raises 400 for a URL that may not be
        fetched or gives no such medium (see :mod:`omni_actors.media.service.fetch`)."""
        async with self._operation() as owner:
            link = q.LinkInfo(url, modality, param or "url", how or q.How())
            return ref_of(await decode_link(self, link, await self.download(link, owner), owner, max_seconds))

    @asynccontextmanager
    async def parse(
        self,
        data: Data,
        *,
        modalities: tuple[str, ...] | None = None,
        clip: str | None = None,
        reference_rate: int | None = None,
    ) -> AsyncIterator[ParsedBody]:
        """A JSON body, parsed; nothing of it is decoded or fetched before the block asks for that, so that what else is
        wrong with the body can be said first. ``modalities`` are those that the model takes in messages (``None``:
        all), and ``clip`` is the body's own field that brings one, if it may: ``input_audio``, or ``ref_audio``, which
        is resampled to ``reference_rate`` Hz. When the block is left, what it has not had decoded is freed.

        Raises :class:`OmniError`: 400 for what is no JSON object, for a part that is none of the model's, and for a URL
        that is sure not to be fetched.
        """
        async with self._operation() as owner:
            sent = await self._send(data, owner, None)
            question = q.ParseChat(
                owner=owner,
                blob=sent.blob,
                data=sent.data,
                modalities=modalities,
                clip=clip,
                reference_rate=reference_rate,
            )
            info = await self.answer(question, q.ChatInfo)
            for medium in info.media:
                if isinstance(medium, q.LinkInfo):
                    self._fetcher.check(medium.url, medium.param)
            body = ParsedBody(self, owner, info)
            try:
                yield body
            finally:
                if body.held is not None:
                    self.leave(owner)

    async def download(self, link: q.LinkInfo, owner: str) -> Sent:
        """Bring the file behind a URL over, for ``owner``. Raises :class:`OmniError` (400) as :meth:`fetch` does."""
        async with self._fetcher.open(link.url, link.modality, link.param) as file:
            return (await self._send(file.pieces, owner, link.param))._replace(content_type=file.content_type)

    @asynccontextmanager
    async def encoder(
        self, format: str, sample_rate: int, channels: int = 1, *, streaming: bool = True
    ) -> AsyncIterator[AudioEncoder]:
        """An encoder for one of :data:`FORMATS` (``pcm16`` is another name of ``pcm``).

        ``streaming=False`` gives nothing before ``finish``, and then a file whose header tells its length.
        """
        format = "pcm" if format == "pcm16" else format
        if format in ("wav", "pcm"):
            yield _Plain(PcmEncoder(format, sample_rate, channels, streaming), 2 * channels * sample_rate, self.limits)
            return
        if format not in FORMATS:
            raise unknown_format(format)
        async with self._operation() as owner:
            question = q.EncodeOpen(
                owner=owner, format=format, sample_rate=sample_rate, channels=channels, streaming=streaming
            )
            encoder = _Remote(self, await self.answer(question, int))
            try:
                yield encoder
            finally:
                if not encoder.ended:
                    self.leave(owner)

    async def encode(self, pcm: bytes, format: str, sample_rate: int, channels: int = 1) -> bytes:
        """A whole file. ``pcm`` is little-endian signed 16 bit."""
        async with self.encoder(format, sample_rate, channels, streaming=False) as encoder:
            return await encoder.feed(pcm) + await encoder.finish()

    async def discard(self, refs: Iterable[MediaRef]) -> None:
        """Free media that no request has taken. Never waits, so it may be called in a cancelled scope; those that are
        gone already are ignored."""
        self._left_clips.update(ref.id for ref in refs)
        if self._left_clips:
            self._left.set()

    @asynccontextmanager
    async def _operation(self) -> AsyncIterator[str]:
        """An owner's token; if the block fails or is cancelled, what the owner still has is freed."""
        owner = f"{self._name}.{next(self._tokens)}"
        try:
            yield owner
        except BaseException:
            self.leave(owner)
            raise

    def leave(self, owner: str) -> None:
        """Have :meth:`run` free what an operation still has in the media process. Never waits."""
        self._left_owners.add(owner)
        self._left.set()

    async def _send(self, data: Data, owner: str, param: str | None) -> Sent:
        """Bring a body over: in the question itself when it fits one piece, else as a blob."""
        blob: int | None = None
        held = bytearray()
        async for piece in _pieces(data):
            if len(held) + len(piece) > PIECE:
                if blob is None:
                    blob = await self.answer(q.BlobOpen(owner=owner, param=param), int)
                await self._ask(q.BlobAppend(blob=blob, data=bytes(held)))
                held.clear()
            held += piece
        if blob is None:
            return Sent(bytes(held), None)
        await self._ask(q.BlobAppend(blob=blob, data=bytes(held)))
        return Sent(b"", blob)

    async def answer(self, question: q.Question, kind: type[A]) -> A:
        """The media process's answer to a question. Raises :class:`OmniError`: its refusal, or 408 after the answer
        time."""
        return q.parse(await self._ask(question), kind)

    async def _ask(self, question: q.Question) -> Any:
        decodes = isinstance(question, q.Decode | q.DecodeParts)
        try:
            with trio.fail_after(self.limits.decode_s if decodes else self._answer_s):
                return await self._query(question.what, question.args())
        except trio.TooSlowError:
            raise deadline_exceeded("The media process did not answer in time.") from None


class _Plain:
    """``wav`` and ``pcm`` in place: a header is no work for another process."""

    def __init__(self, pcm: PcmEncoder, bytes_per_second: int, limits: Limits) -> None:
        self._pcm = pcm
        self._room = limits.max_seconds * bytes_per_second
        self._limits = limits

    async def feed(self, pcm: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        self._room -= len(pcm)
        if self._room < 0:
            raise too_long_to_encode(self._limits)
        return self._pcm.feed(pcm)

    async def finish(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._pcm.finish()


class _Remote:
    def __init__(self, service: MediaService, stream: int) -> None:
        self._service = service
        self._stream = stream
        self.ended = False

    async def feed(self, pcm: bytes) -> bytes:
        data = b""
        for at in range(0, len(pcm), PIECE):
            data += await self._all(q.EncodeFeed(stream=self._stream, data=pcm[at : at + PIECE]))
        return data

    async def finish(self) -> bytes:
        data = await self._all(q.EncodeFinish(stream=self._stream))
        self.ended = True
        return data

    async def _all(self, question: q.Question) -> bytes:
        encoded = await self._service.answer(question, q.Encoded)
        pieces = [encoded.data]
        while encoded.more:
            encoded = await self._service.answer(q.EncodeRead(stream=self._stream), q.Encoded)
            pieces.append(encoded.data)
        return b"".join(pieces)


async def _pieces(data: Data) -> AsyncIterator[bytes]:
    """``data`` in pieces of at most :data:`PIECE` bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        for at in range(0, len(data), PIECE):
            yield bytes(data[at : at + PIECE])
        return
    async for given in data:
        for at in range(0, len(given), PIECE):
            yield given[at : at + PIECE]
