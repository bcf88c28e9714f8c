"""The serving side of the media process. Imports neither numpy nor a codec."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import trio

from omni_actors.media import questions as q
from omni_actors.media.limits import FORMATS, PIECE, Limits, too_long_to_encode, unknown_format
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
    what is wrong with the media, 413 and 429 for its bounds, 408 when an answer takes longer than ``answer_s`` seconds,
    503 when the process is gone.

    Cancellation: whatever a cancelled or failed operation has left in the media process is freed by :meth:`run`, which
    must be running in the owner's nursery. What is to be freed is kept in two sets: it cannot be lost to a full queue,
    and leaving an operation never waits.
    """

    def __init__(self, query: Ask, *, limits: Limits | None = None, answer_s: float = 30.0) -> None:
        self._query = query
        self._limits = limits or Limits()
        self._answer_s = answer_s
        self._name = secrets.token_hex(8)
        self._tokens = itertools.count(1)
        self._left_owners: set[str] = set()
        self._left_clips: set[int] = set()
        self._left = trio.Event()

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
        content_type: str | None = None,
        filename: str | None = None,
        max_seconds: float | None = None,
        param: str | None = "file",
    ) -> MediaRef:
        """Decode an audio file of at most ``max_seconds`` (the media stage's own limit holds too). The clip is the
        caller's, to use in a request or to :meth:`discard`. ``param`` names the field in what is refused."""
        async with self._operation() as owner:
            small, blob = await self._send(data, owner, param)
            info = await self._answer(
                q.DecodeAudio(
                    owner=owner,
                    blob=blob,
                    data=small,
                    content_type=content_type,
                    filename=filename,
                    max_seconds=max_seconds,
                    param=param,
                ),
                q.ClipInfo,
            )
        return MediaRef(info.clip, "audio", info.seconds)

    async def parse_chat(self, data: Data, *, max_seconds: float | None = None) -> tuple[bytes, list[MediaRef]]:
        """Parse a chat body: its JSON with each audio part replaced by ``{"type": "audio", "index": i}``, and the clips
        in order. ``max_seconds`` bounds their sum."""
        async with self._operation() as owner:
            small, blob = await self._send(data, owner, None)
            question = q.ParseChat(owner=owner, blob=blob, data=small, max_seconds=max_seconds)
            info = await self._answer(question, q.ChatInfo)
        return info.body, [MediaRef(clip.clip, "audio", clip.seconds) for clip in info.clips]

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
        """Free clips that no request has taken. Never waits, so it may be called in a cancelled scope; clips that are
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
        try:
            with trio.fail_after(self._answer_s):
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
