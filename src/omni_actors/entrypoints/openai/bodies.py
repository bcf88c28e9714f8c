"""JSON bodies: small ones are parsed here, large ones and media in the media process."""

from __future__ import annotations

import re

from omni_actors.entrypoints.http import Call, before
from omni_actors.entrypoints.services import Services
from omni_actors.media.limits import Limits
from omni_actors.protocol.errors import too_large
from omni_actors.protocol.request import MediaRef

MAX_JSON = Limits().max_json_bytes


async def read_json(
    services: Services,
    call: Call,
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
    """
    limits = services.plan.limits
    if services.media is None:
        data, ended = await call.read(MAX_JSON)
        if not ended:
            raise too_large(f"The body is larger than {MAX_JSON >> 20} MiB.")
        return data, []
    data, ended = await call.read(limits.inline_body_bytes)
    if ended and (media is None or media.search(data) is None):
        return data, []
    with before(call.context) as bound:
        clean, clips = await services.media.parse_chat(
            data if ended else call.rest(data),
            bound=bound,
            modalities=modalities,
            clip=clip,
            reference_rate=services.plan.sample_rate,
        )
    await call.enter(services.clips(clips))
    return clean, clips
