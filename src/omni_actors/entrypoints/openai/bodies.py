"""JSON bodies: small ones are parsed in this process, large ones and those with media in the media process.

Every route with media keeps one order, so that a request is refused before any costly work for it:

1. Before the body is read, the head alone decides: route, key, headers and Content-Length
   (:func:`reject_early_by_head`).
2. The body is parsed, and all of its fields are checked.
3. Admission refuses the request if a refusal is certain, now with the body's own priority (:func:`bring_media`).
4. Only then are media decoded or fetched.

Nothing looks into a body that is still arriving.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omni_actors.entrypoints.http import Call, until_deadline
from omni_actors.entrypoints.services import Services
from omni_actors.media.limits import Limits
from omni_actors.media.service.uploads import ParsedBody
from omni_actors.pipelines.subgraph import Key
from omni_actors.protocol.errors import too_large
from omni_actors.protocol.request import MAX_PRIORITY, MediaRef, Request

MAX_JSON = Limits().max_json_bytes


@dataclass(slots=True)
class JsonBody:
    """A JSON body that is small enough to decode in this process; its media are neither decoded nor fetched yet.

    ``json`` has ``{"type": MODALITY, "index": i}`` in place of each medium; ``modalities`` are the media's, in order.
    """

    json: bytes
    modalities: tuple[str, ...] = ()
    parsed: ParsedBody | None = None

    async def decode(self, longest_s: float | None) -> list[MediaRef]:
        """Decode and fetch the media, once. No clip may be longer than ``longest_s``. Raises 400, 408, 413 or 429 for
        unusable media."""
        return [] if self.parsed is None else await self.parsed.decode(longest_s=longest_s)


async def read_json(
    services: Services,
    call: Call,
    needs: Key,
    media: re.Pattern[bytes] | None = None,
    modalities: tuple[str, ...] | None = None,
    clip: str | None = None,
    alpha: bool = False,
) -> JsonBody:
    """Read a request's body. Whatever the media process keeps of the body is freed when the call is over.

    Args:
        services: The deployment.
        call: The request.
        needs: A lower bound of the request's needs. If admission is certain to refuse such a request, the refusal is
            raised before the body is read (unless the whole body has arrived), and before the media process gets it.
        media: A pattern that matches every body with media. A body that matches, or is larger than
            ``limits.inline_body_bytes``, goes to the media process as it arrives and is parsed there.
        modalities: Modalities of media that are accepted; ``None`` accepts all.
        clip: The field of the body that holds a clip, or its pictures to edit, if the route has one.
        alpha: Whether images of messages keep their transparency.

    Raises:
        OmniError: 413 for a body that is too large (without a media process, the limit of JSON applies), 429 or 503
            for a certain refusal, 400 for unusable media.
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
    with until_deadline(call.context):
        parsed = await call.enter(
            services.media.parse(
                data if ended else call.rest(data),
                modalities=modalities,
                clip=clip,
                reference_rate=services.plan.sample_rate,
                alpha=alpha,
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
    """Put the media into a request whose fields have all been checked. The media are freed when the call is over.

    ``decode`` decodes and fetches the media, given the seconds of the longest clip that the model takes; it is not
    called if admission is certain to refuse the request. ``timeout_s`` is the budget that the body names; the rest of
    the budget becomes the request's deadline. Raises the errors of ``decode`` and of admission, and 408 when the budget
    is used up.
    """
    services.reject_early(request, priority_may_drop=False)
    with until_deadline(call.context) as bound:
        if timeout_s is not None:
            bound(timeout_s)
        media = await decode(services.plan.input_limit(request.task, "audio"))
    await call.enter(services.clips(media))
    request.media = tuple(media)
    request.deadline_s = call.context.remaining(timeout_s)


def reject_early_by_head(services: Services, call: Call, needs: Key) -> None:
    """Raise the error of admission that is certain for any request with these needs or more, by the request's head
    alone.

    A priority in the header counts. Without one the body may name any priority, so only a refusal that holds for the
    most urgent priority is certain.
    """
    task, inputs, outputs = needs
    outline = Request(
        task=task,
        inputs=inputs,
        outputs=outputs,
        priority=call.context.combined_priority(-MAX_PRIORITY),
        tenant=call.context.tenant,
    )
    services.reject_early(outline, priority_may_drop=True)
