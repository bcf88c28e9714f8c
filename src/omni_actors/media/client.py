"""The serving side of the media process. Imports neither numpy nor a codec."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import trio

from omni_actors.media import questions as q
from omni_actors.media.fetch import Fetcher
from omni_actors.media.limits import FORMATS, PIECE, Limits, too_long_to_encode, unknown_format
from omni_actors.media.wav import PcmEncoder
from omni_actors.protocol.errors import OmniError, deadline_exceeded
from omni_actors.protocol.request import MediaRef

log = logging.getLogger(__name__)

A = TypeVar("A")
Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
Data = bytes | AsyncIterable[bytes]


FETCHES_PER_BODY = 4
"""URLs of one body that are fetched at once."""


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
        self._limits = limits or Limits()
        self._answer_s = answer_s
        self._fetcher = Fetcher(self._limits)
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
            upload = Upload(self, owner, *await self._send(data, owner, param), param)
            try:
                yield upload
            finally:
                if upload.held:
                    self._leave(owner)

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
        fetched or gives no such medium (see :mod:`omni_actors.media.fetch`)."""
        async with self._operation() as owner:
            link = q.LinkInfo(url, modality, param or "url", how or q.How())
            return _ref(await self._decode_link(link, await self._download(link, owner), owner, max_seconds))

    async def parse_chat(
        self,
        data: Data,
        *,
        max_seconds: float | None = None,
        modalities: tuple[str, ...] | None = None,
        clip: str | None = None,
        reference_rate: int | None = None,
        told: Callable[[q.ChatInfo], None] | None = None,
    ) -> tuple[bytes, list[MediaRef]]:
        """Parse a chat body: its JSON with each media part replaced by ``{"type": MODALITY, "index": i}``, and the
        media in order. Those that it names by URL are fetched, several at once. ``max_seconds`` bounds the sum of their
        sound; ``modalities`` are those that the model takes in messages (``None``: all), and ``clip`` is the
        body's own field that brings one, if it may: ``input_audio``, or ``ref_audio``, which is resampled to
        ``reference_rate`` Hz. ``told`` is called with what has been found before anything is fetched; what it raises
        ends the matter."""
        async with self._operation() as owner:
            small, blob = await self._send(data, owner, None)
            question = q.ParseChat(
                owner=owner,
                blob=blob,
                data=small,
                max_seconds=max_seconds,
                modalities=modalities,
                clip=clip,
                reference_rate=reference_rate,
            )
            info = await self._answer(question, q.ChatInfo)
            if told is not None:
                told(info)
            media = await self._follow(info.media, owner, max_seconds)
        return info.body, [_ref(medium) for medium in media]

    async def _follow(
        self, given: tuple[q.MediumInfo | q.LinkInfo, ...], owner: str, max_seconds: float | None
    ) -> list[q.MediumInfo]:
        """The media with those behind links among them. One link that fails ends the work on all."""
        bodies: dict[int, _Body] = {}
        failed: list[OmniError] = []

        async def download(place: int, link: q.LinkInfo) -> None:
            try:
                async with slots:
                    bodies[place] = await self._download(link, owner)
            except OmniError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        slots = trio.CapacityLimiter(FETCHES_PER_BODY)
        async with trio.open_nursery() as nursery:
            for place, it in enumerate(given):
                if isinstance(it, q.LinkInfo):
                    nursery.start_soon(download, place, it)
        if failed:
            raise failed[0]
        left = self._limits.max_seconds if max_seconds is None else max_seconds
        left -= sum(it.audio_seconds for it in given if isinstance(it, q.MediumInfo))
        media: list[q.MediumInfo] = []
        for place, it in enumerate(given):
            if isinstance(it, q.LinkInfo):
                it = await self._decode_link(it, bodies.pop(place), owner, left)
                left -= it.audio_seconds
            media.append(it)
        return media

    async def _download(self, link: q.LinkInfo, owner: str) -> _Body:
        async with self._fetcher.open(link.url, link.modality, link.param) as file:
            return _Body(*await self._send(file.pieces, owner, link.param), file.content_type)

    async def _decode_link(self, link: q.LinkInfo, body: _Body, owner: str, max_seconds: float | None) -> q.MediumInfo:
        question = q.Decode(
            owner=owner,
            modality=link.modality,
            blob=body.blob,
            data=body.data,
            content_type=body.content_type,
            max_seconds=max_seconds,
            how=link.how,
            param=link.param,
        )
        return await self._answer(question, q.MediumInfo)

    @asynccontextmanager
    async def encoder(
        self, format: str, sample_rate: int, channels: int = 1, *, streaming: bool = True
    ) -> AsyncIterator[AudioEncoder]:
        """An encoder for one of :data:`FORMATS` (``pcm16`` is another name of ``pcm``).

        ``streaming=False`` gives nothing before ``finish``, and then a file whose header tells its length.
        """
        format = "pcm" if format == "pcm16" else format
        if format in ("wav", "pcm"):
            yield _Plain(PcmEncoder(format, sample_rate, channels, streaming), 2 * channels * sample_rate, self._limits)
            return
        if format not in FORMATS:
            raise unknown_format(format)
        async with self._operation() as owner:
            question = q.EncodeOpen(
                owner=owner, format=format, sample_rate=sample_rate, channels=channels, streaming=streaming
            )
            encoder = _Remote(self, await self._answer(question, int))
            try:
                yield encoder
            finally:
                if not encoder.ended:
                    self._leave(owner)

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
            self._leave(owner)
            raise

    def _leave(self, owner: str) -> None:
        self._left_owners.add(owner)
        self._left.set()

    async def _send(self, data: Data, owner: str, param: str | None) -> tuple[bytes, int | None]:
        """Bring a body over: in the question itself when it fits one piece, else as a blob."""
        blob: int | None = None
        held = bytearray()
        async for piece in _pieces(data):
            if len(held) + len(piece) > PIECE:
                if blob is None:
                    blob = await self._answer(q.BlobOpen(owner=owner, param=param), int)
                await self._ask(q.BlobAppend(blob=blob, data=bytes(held)))
                held.clear()
            held += piece
        if blob is None:
            return bytes(held), None
        await self._ask(q.BlobAppend(blob=blob, data=bytes(held)))
        return b"", blob

    async def _answer(self, question: q.Question, kind: type[A]) -> A:
        return q.parse(await self._ask(question), kind)

    async def _ask(self, question: q.Question) -> Any:
        decodes = isinstance(question, q.Decode | q.ParseChat)
        try:
            with trio.fail_after(self._limits.decode_s if decodes else self._answer_s):
                return await self._query(question.what, question.args())
        except trio.TooSlowError:
            raise deadline_exceeded("The media process did not answer in time.") from None


class Upload:
    """A file in the media process, or a small one that still is here."""

    def __init__(self, service: MediaService, owner: str, data: bytes, blob: int | None, param: str | None) -> None:
        self.held = blob is not None
        """Whether the media process has it."""
        self._service = service
        self._owner = owner
        self._data = data
        self._blob = blob
        self._param = param

    async def decode(
        self,
        *,
        modality: str = "audio",
        content_type: str | None = None,
        filename: str | None = None,
        max_seconds: float | None = None,
        how: q.How | None = None,
    ) -> MediaRef:
        """As :meth:`MediaService.decode`; once."""
        question = q.Decode(
            owner=self._owner,
            modality=modality,
            blob=self._blob,
            data=self._data,
            content_type=content_type,
            filename=filename,
            max_seconds=max_seconds,
            how=how or q.How(),
            param=self._param,
        )
        self.held = False
        try:
            return _ref(await self._service._answer(question, q.MediumInfo))
        except BaseException:
            self._service._leave(self._owner)
            raise


class _Body(NamedTuple):
    """A body that is over there: in a blob, or ``data`` still here for the question itself."""

    data: bytes
    blob: int | None
    content_type: str | None


def _ref(info: q.MediumInfo) -> MediaRef:
    return MediaRef(info.id, info.modality, info.seconds)


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
        encoded = await self._service._answer(question, q.Encoded)
        pieces = [encoded.data]
        while encoded.more:
            encoded = await self._service._answer(q.EncodeRead(stream=self._stream), q.Encoded)
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
