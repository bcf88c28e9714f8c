"""JSON bodies: small ones are parsed here, large ones and those with media in the media process.

Every route that takes media keeps one order, so that what can be known without a medium is said without one: the body
is parsed, everything in it is checked, admission says whether it is sure to refuse the request, and only then is
anything decoded or fetched (:func:`bring_media`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omni_actors.entrypoints.http import Call, before
from omni_actors.entrypoints.services import Services
from omni_actors.media.limits import Limits
from omni_actors.media.uploads import ParsedBody
from omni_actors.pipelines.subgraph import Key
from omni_actors.protocol.errors import too_large
from omni_actors.protocol.request import MAX_PRIORITY, MediaRef, Request

MAX_JSON = Limits().max_json_bytes


@dataclass(slots=True)
class JsonBody:
    """A JSON body that is small enough to decode here; its media are neither decoded nor fetched yet. ``json`` has each
    of them replaced by ``{"type": MODALITY, "index": i}``, ``modalities`` are theirs in order."""

    json: bytes
    modalities: tuple[str, ...] = ()
    parsed: ParsedBody | None = None

    async def decode(self, longest_s: float | None) -> list[MediaRef]:
        """Decode and fetch the media, once; no clip may be longer than that. Raises 400, 408, 413 or 429 for what is
        wrong with them."""
        return [] if self.parsed is None else await self.parsed.decode(longest_s=longest_s)


async def read_json(
    services: Services,
    call: Call,
    needs: Key,
    media: re.Pattern[bytes] | None = None,
    modalities: tuple[str, ...] | None = None,
    clip: str | None = None,
) -> JsonBody:
    """A request's body. What the media process keeps of it is freed when the call is over.

    A body over ``limits.inline_body_bytes``, or with a match of ``media``, goes to the media process, raw and as it
    arrives, and is parsed there. Media of a modality that is not among ``modalities`` (``None``: all are) are refused;
    ``clip`` is the body's own field that brings one, if any may. A deployment without a media process takes no media,
    and parses everything here: its bodies have the default bound of JSON there. Raises 413 over it.

    ``needs`` is the least that the request is: what admission is sure to say of that is raised before the body is read,
    unless it is there already, and before anything of it goes to the media process.
    """
    limits = services.plan.limits
    if not (here := call.body.received):
        reject_early_by_head(services, call, needs)
    if services.media is None:
        data, ended = await call.read(MAX_JSON)
        if not ended:
            raise too_large(f"The body is larger than {MAX_JSON >> 20} MiB.")
        return JsonBody(data)
    data, ended = await call.read(limits.inline_body_bytes)
    if ended and (media is None or media.search(data) is None):
        return JsonBody(data)
    if here:
        reject_early_by_head(services, call, needs)
    with before(call.context):
        parsed = await call.enter(
            services.media.parse(
                data if ended else call.rest(data),
                modalities=modalities,
                clip=clip,
                reference_rate=services.plan.sample_rate,
            )
        )
    return JsonBody(parsed.json, parsed.modalities, parsed)


async def bring_media(
    services: Services,
    call: Call,
    request: Request,
    timeout_s: float | None,
    decode: Callable[[float | None], Awaitable[list[MediaRef]]],
) -> None:
    """Put the media into a request that has been checked wholly. They are freed when the call is over.

    ``decode`` decodes and fetches them, given the seconds of the longest clip that the model takes; it is not called
    when admission is sure to refuse the request. ``timeout_s`` is the budget that the body names: what is left of it
    afterwards is the request's deadline. Raises what ``decode`` and admission raise, and 408 when the budget is used
    up.
    """
    services.reject_early(request, or_later=False)
    with before(call.context) as bound:
        if timeout_s is not None:
            bound(timeout_s)
        media = await decode(services.plan.input_limit(request.task, "audio"))
    await call.enter(services.clips(media))
    request.media = tuple(media)
    request.deadline_s = call.context.remaining(timeout_s)


def reject_early_by_head(services: Services, call: Call, needs: Key) -> None:
    """Raise what admission is sure to say of any request that needs this or more, while nothing of its body is known:
    it may have any priority."""
    task, inputs, outputs = needs
    outline = Request(
        task=task,
        inputs=inputs,
        outputs=outputs,
        priority=call.context.later(-MAX_PRIORITY),
        tenant=call.context.tenant,
    )
    services.reject_early(outline, or_later=True)
