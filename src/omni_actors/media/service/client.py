"""The client of the media process. This module imports neither numpy nor a codec."""

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
        """Take PCM (little-endian signed 16 bit, cut anywhere) and return the encoded bytes so far, often none."""
        ...

    async def finish(self) -> bytes:
        """Return the remaining bytes. Call it once, as the last call."""
        ...


class MediaService:
    """The client by which the serving process decodes, parses and encodes in the media process.

    ``query`` sends a query to the media worker and returns the answer; it may raise :class:`OmniError`. ``limits`` are
    the worker's limits, and hold for sound encoded in this process too. Every method raises :class:`OmniError`: 400
    with ``param`` for wrong media, 413 and 429 for exceeded bounds, 408 when an answer takes longer than ``answer_s``
    seconds (``limits.decode_s`` when media are decoded), 503 when the media process is gone.

    Cancellation: :meth:`run`, which must be running in the owner's nursery, frees everything that a cancelled or failed
    operation has left in the media process. Two sets hold the things to be freed, so that none is lost to a full queue,
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
        """The numbers of fetched URLs by result (``fetched``, ``refused`` by the checks, ``failed``), and their
        ``bytes``."""
        return self._fetcher.totals

    async def run(self) -> None:
        """Tell the media process about abandoned operations and media, until cancelled."""
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
        """Decode a file: a clip of at most ``max_seconds``, an image or a video. The media stage's own limits hold too.

        The caller owns the medium, to use it in a request or to :meth:`discard` it. ``param`` names the field in
        errors.
        """
        async with self.upload(data, param=param) as file:
            return await file.decode(
                modality=modality, content_type=content_type, filename=filename, max_seconds=max_seconds, how=how
            )

    @asynccontextmanager
    async def upload(self, data: Data, *, param: str | None = "file") -> AsyncIterator[Upload]:
        """Send a file to the media process, unless it is small, to be decoded later with more known about its use.

        A file that is not decoded when the block is left is freed.
        """
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
        """Fetch the medium behind a client's http(s) URL, and decode it like :meth:`decode`.

        Raises 400 for a URL that may not be fetched, or that gives no medium of the modality
        (:mod:`omni_actors.media.service.fetch`).
        """
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
        alpha: bool = False,
    ) -> AsyncIterator[ParsedBody]:
        """Parse a JSON body. Its media are neither decoded nor fetched before the block asks, so that other errors in
        the body come first.

        ``modalities`` are the modalities that the model takes in messages (``None``: all). ``clip`` is the body's own
        field with a clip, if there may be one: ``input_audio``, or ``ref_audio``, which is resampled to
        ``reference_rate`` Hz. With ``alpha`` the images keep their transparency. Media that are not decoded when the
        block is left are freed.

        Raises :class:`OmniError`: 400 for a body that is not a JSON object, for a part of a modality that the model
        does not take, and for a URL that is certain not to be fetched.
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
                alpha=alpha,
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

    def check_url(self, url: str, param: str) -> None:
        """Raise :class:`OmniError` (400) for a URL that is certain not to be fetched."""
        self._fetcher.check(url, param)

    async def download(self, link: q.LinkInfo, owner: str) -> Sent:
        """Send the file behind a URL to the media process, for ``owner``. Raises :class:`OmniError` (400) like
        :meth:`fetch`."""
        async with self._fetcher.open(link.url, link.modality, link.param) as file:
            return (await self._send(file.pieces, owner, link.param))._replace(content_type=file.content_type)

    @asynccontextmanager
    async def encoder(
        self, format: str, sample_rate: int, channels: int = 1, *, streaming: bool = True
    ) -> AsyncIterator[AudioEncoder]:
        """Open an encoder for one of :data:`FORMATS` (``pcm16`` is another name of ``pcm``).

        With ``streaming=False``, ``finish`` returns the whole file, with the exact length in its header.
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
        """Encode a whole file. ``pcm`` is little-endian signed 16 bit."""
        async with self.encoder(format, sample_rate, channels, streaming=False) as encoder:
            return await encoder.feed(pcm) + await encoder.finish()

    async def discard(self, refs: Iterable[MediaRef]) -> None:
        """Free media that no request has taken. Unknown media are ignored.

        Never waits, so that it may be called in a cancelled scope.
        """
        self._left_clips.update(ref.id for ref in refs)
        if self._left_clips:
            self._left.set()

    @asynccontextmanager
    async def _operation(self) -> AsyncIterator[str]:
        """Yield an owner's token. If the block fails or is cancelled, everything of the owner is freed."""
        owner = f"{self._name}.{next(self._tokens)}"
        try:
            yield owner
        except BaseException:
            self.leave(owner)
            raise

    def leave(self, owner: str) -> None:
        """Let :meth:`run` free everything of an operation in the media process. Never waits."""
        self._left_owners.add(owner)
        self._left.set()

    async def _send(self, data: Data, owner: str, param: str | None) -> Sent:
        """Send a body: within the query when the body fits one piece, otherwise as a blob."""
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
        """Return the media process's answer to a query. Raises :class:`OmniError`: the refusal, or 408 after
        ``answer_s``."""
        return q.parse(await self._ask(question), kind)

    async def _ask(self, question: q.Question) -> Any:
        decodes = isinstance(question, q.Decode | q.DecodeParts)
        try:
            with trio.fail_after(self.limits.decode_s if decodes else self._answer_s):
                return await self._query(question.what, question.args())
        except trio.TooSlowError:
            raise deadline_exceeded("The media process did not answer in time.") from None


class _Plain:
    """An encoder for ``wav`` and ``pcm`` in this process, since writing a header needs no other process."""

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
    """Cut ``data`` into pieces of at most :data:`PIECE` bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        for at in range(0, len(data), PIECE):
            yield bytes(data[at : at + PIECE])
        return
    async for given in data:
        for at in range(0, len(given), PIECE):
            yield given[at : at + PIECE]
