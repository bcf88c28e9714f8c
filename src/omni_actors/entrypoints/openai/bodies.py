"""JSON bodies: small ones are parsed here, large ones and media in the media process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable

import msgspec

from omni_actors.entrypoints.http import Call, before
from omni_actors.entrypoints.openai.schemas import Priority
from omni_actors.entrypoints.services import Services
from omni_actors.media.limits import Limits
from omni_actors.media.questions import ChatInfo
from omni_actors.pipelines.subgraph import Key
from omni_actors.protocol.errors import too_large
from omni_actors.protocol.request import MAX_PRIORITY, MediaRef, Request

MAX_JSON = Limits().max_json_bytes


async def read_json(
    services: Services,
    call: Call,
    needs: Key,
    media: re.Pattern[bytes] | None = None,
    modalities: tuple[str, ...] | None = None,
    clip: str | None = None,
) -> tuple[bytes, list[MediaRef]]:
    """A body as JSON that is small enough to decode here, and the media that were in it (freed when the call is over).

    A body over ``limits.inline_body_bytes``, or with a match of ``media``, goes to the media process, raw and as it
    arrives. Media of a modality that is not among ``modalities`` (``None``: all are) are refused there before they are
    decoded or fetched; ``clip`` is the body's own field that brings one, if any may. A deployment without a media
    process takes no media, and parses everything here: its bodies have the default bound of JSON there. Raises 413 over
    it.

    ``needs`` is the least that the request is: what admission is sure to say of that is raised before the body is read
    (unless it is there already), before it goes to the media process, before anything is decoded there and before
    anything is fetched, as soon as enough of it is known. Only media in a body over ``limits.inline_body_bytes`` that
    names a priority of its own are decoded before it is known.
    """
    limits = services.plan.limits
    if not call.body.received:
        foresee_any(services, call, needs)
    if services.media is None:
        data, ended = await call.read(MAX_JSON)
        if not ended:
            raise too_large(f"The body is larger than {MAX_JSON >> 20} MiB.")
        return data, []
    data, ended = await call.read(limits.inline_body_bytes)
    if ended:
        if media is None or media.search(data) is None:
            return data, []
        _foresee_of(services, call, needs, data)

    def told(info: ChatInfo) -> None:
        if info.timeout_s is not None and info.timeout_s > 0:
            bound(info.timeout_s)
        task, inputs, outputs = needs
        modalities = sorted({medium.modality for medium in info.media})
        foresee(services, call, (task, tuple(dict.fromkeys((*inputs, *modalities))), outputs), info.priority)

    def at_end() -> None:
        foresee(services, call, needs, None)

    with before(call.context) as bound:
        clean, clips = await services.media.parse_chat(
            data if ended else _unless_named(call.rest(data), at_end),
            told=told,
            modalities=modalities,
            clip=clip,
            reference_rate=services.plan.sample_rate,
        )
    await call.enter(services.clips(clips))
    return clean, clips


def foresee(services: Services, call: Call, needs: Key, priority: int | None, *, or_later: bool = False) -> None:
    """Raise what admission is sure to say of a request that needs this, or more of it. ``priority`` is that of its
    body's field; ``or_later``: at the most urgent."""
    task, inputs, outputs = needs
    outline = Request(
        task=task, inputs=inputs, outputs=outputs, priority=call.context.later(priority), tenant=call.context.tenant
    )
    services.foresee(outline, or_later=or_later)


def foresee_any(services: Services, call: Call, needs: Key) -> None:
    """The same while nothing of the body is known."""
    foresee(services, call, needs, -MAX_PRIORITY, or_later=True)


_NAMES = (b"priority", b"\\u006", b"\\u007")
"""What is in a JSON body with a field ``priority``: its letters may be escapes."""


class _Wish(msgspec.Struct):
    priority: Priority | None = None


def _foresee_of(services: Services, call: Call, needs: Key, data: bytes) -> None:
    """The same for a whole body. What is wrong with it is for others to say."""
    try:
        wish = msgspec.json.decode(data, type=_Wish)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    foresee(services, call, needs, wish.priority)


async def _unless_named(pieces: AsyncIterator[bytes], at_end: Callable[[], None]) -> AsyncIterator[bytes]:
    """``pieces``; behind the last one, ``at_end`` is called if the body cannot have a field ``priority``."""
    named, end = False, b""
    async for piece in pieces:
        yield piece
        seen = end + piece
        named = named or any(name in seen for name in _NAMES)
        end = seen[-7:]
    if not named:
        at_end()
