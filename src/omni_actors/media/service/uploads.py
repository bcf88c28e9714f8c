"""Files and JSON bodies in the media process that are not decoded yet."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import trio

from omni_actors.media import questions as q
from omni_actors.media.limits import Limits
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import MediaRef

A = TypeVar("A")

FETCHES_PER_BODY = 4
"""The number of URLs of one body that are fetched at once."""


class Sent(NamedTuple):
    """A file sent to the media process: as a ``blob``, or a small file whose ``data`` go with the query."""

    data: bytes
    blob: int | None
    content_type: str | None = None


class MediaClient(Protocol):
    """The client of the media process, as far as uploads need it."""

    limits: Limits

    async def answer(self, question: q.Question, kind: type[A]) -> A:
        """Return the media process's answer to a query."""

    async def download(self, link: q.LinkInfo, owner: str) -> Sent:
        """Send the file behind a URL to the media process."""

    def leave(self, owner: str) -> None:
        """Let everything of an operation in the media process be freed."""


class Upload:
    """A file in the media process, or a small file that is still in this process."""

    def __init__(self, service: MediaClient, owner: str, sent: Sent, param: str | None) -> None:
        self.held = sent.blob is not None
        """Whether the file is in the media process."""
        self._service = service
        self._owner = owner
        self._sent = sent
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
        """Decode the file like :meth:`MediaService.decode`. Call it once."""
        question = q.Decode(
            owner=self._owner,
            modality=modality,
            blob=self._sent.blob,
            data=self._sent.data,
            content_type=content_type,
            filename=filename,
            max_seconds=max_seconds,
            how=how or q.How(),
            param=self._param,
        )
        self.held = False
        try:
            return ref_of(await self._service.answer(question, q.MediumInfo))
        except BaseException:
            self._service.leave(self._owner)
            raise


class ParsedBody:
    """A JSON body whose media are neither decoded nor fetched yet.

    ``json`` is the body with each medium replaced by ``{"type": MODALITY, "index": i}``. ``modalities`` are the
    modalities of the media, in the same order.
    """

    def __init__(self, service: MediaClient, owner: str, info: q.ChatInfo) -> None:
        self.json = info.body
        self.modalities = tuple([medium.modality for medium in info.media])
        self.held = info.held
        """The id of the data that the media process keeps for :meth:`decode`, or ``None``."""
        self._service = service
        self._owner = owner
        self._media = info.media

    async def decode(self, *, max_seconds: float | None = None, longest_s: float | None = None) -> list[MediaRef]:
        """Decode the media in the body, and fetch and decode the media that the body names by URL, several at once.

        Call it once. ``max_seconds`` bounds the sum of all sound, ``longest_s`` each clip. The caller owns the media,
        to use in a request or to discard. Raises like :meth:`MediaService.decode` and :meth:`MediaService.fetch`; the
        first failure ends the work on all media.
        """
        try:
            return [ref_of(medium) for medium in await self._decode(max_seconds, longest_s)]
        except BaseException:
            self._service.leave(self._owner)
            raise

    async def _decode(self, max_seconds: float | None, longest_s: float | None) -> list[q.MediumInfo]:
        service, owner = self._service, self._owner
        left = service.limits.max_seconds if max_seconds is None else max_seconds
        brought: list[q.MediumInfo] = []
        if self.held is not None:
            question = q.DecodeParts(owner=owner, body=self.held, max_seconds=left, longest_s=longest_s)
            self.held = None
            brought = list(await service.answer(question, tuple[q.MediumInfo, ...]))
            left -= sum(medium.audio_seconds for medium in brought)
        files = await self._download()
        held = iter(brought)
        media = []
        for place, it in enumerate(self._media):
            if isinstance(it, q.LinkInfo):
                most = min(left, longest_s) if it.modality == "audio" and longest_s is not None else left
                medium = await decode_link(service, it, files.pop(place), owner, most)
                left -= medium.audio_seconds
            else:
                medium = next(held)
            media.append(medium)
        return media

    async def _download(self) -> dict[int, Sent]:
        """Download the files behind the links, by place. The first failure ends the work on the other links."""
        files: dict[int, Sent] = {}
        failed: list[OmniError] = []

        async def download(place: int, link: q.LinkInfo) -> None:
            try:
                async with slots:
                    files[place] = await self._service.download(link, self._owner)
            except OmniError as error:
                failed.append(error)
                nursery.cancel_scope.cancel()

        slots = trio.CapacityLimiter(FETCHES_PER_BODY)
        async with trio.open_nursery() as nursery:
            for place, it in enumerate(self._media):
                if isinstance(it, q.LinkInfo):
                    nursery.start_soon(download, place, it)
        if failed:
            raise failed[0]
        return files


async def decode_link(
    service: MediaClient, link: q.LinkInfo, sent: Sent, owner: str, max_seconds: float | None
) -> q.MediumInfo:
    """Decode the file behind a link. Raises :class:`OmniError`."""
    question = q.Decode(
        owner=owner,
        modality=link.modality,
        blob=sent.blob,
        data=sent.data,
        content_type=sent.content_type,
        max_seconds=max_seconds,
        how=link.how,
        param=link.param,
    )
    return await service.answer(question, q.MediumInfo)


def ref_of(info: q.MediumInfo) -> MediaRef:
    return MediaRef(info.id, info.modality, info.seconds, info.width, info.height)
