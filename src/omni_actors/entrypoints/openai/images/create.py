"""``POST /v1/images/generations``, ``/v1/images/edits`` and ``/v1/images/variations``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.bodies import read_json
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.images.events import events
from omni_actors.entrypoints.openai.images.facts import GENERATE, SECTION, picture_facts
from omni_actors.entrypoints.openai.images.previews import check_previews, set_previews
from omni_actors.entrypoints.openai.images.reply import Wanted, whole
from omni_actors.entrypoints.openai.images.schemas import GenerationRequest, ImageRequest
from omni_actors.entrypoints.openai.images.section import image_section, in_words_of
from omni_actors.entrypoints.openai.keepalive import first_event
from omni_actors.entrypoints.services import Services
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.errors import OmniError, invalid_request, not_found
from omni_actors.protocol.request import Request

QUALITIES = ("low", "medium", "high", "xhigh", "max")
"""Qualities that OpenAI's events may repeat."""


async def generate(services: Services, call: Call) -> Reply:
    """Make pictures from a prompt."""
    needs = (GENERATE, ("text",), ("image",))
    read = await read_json(services, call, needs)
    body = decode(read.json, GenerationRequest)
    services.model(body.model)
    services.task(GENERATE, inputs=("text",), outputs=("image",))
    request, wanted = image_request(services, call, body, GENERATE)
    services.reject_early(request, priority_may_drop=False)
    return await answer(services, call, body, request, wanted)


async def variations(services: Services, call: Call) -> Reply:
    """Refuse variations by name."""
    has = [path for task, path in _INSTEAD.items() if task in services.plan.tasks]
    instead = f"; this server has: {', '.join(has)}" if has else ""
    raise not_found(f"Variations of pictures are not served{instead}.", code="unsupported_route")


_INSTEAD = {"image": "POST /v1/images/generations", "image_edit": "POST /v1/images/edits (a picture and a prompt)"}


def image_request(
    services: Services, call: Call, body: ImageRequest, task: str, *, pictures: int = 0, mask: bool = False
) -> tuple[Request, Wanted]:
    """Return the request for the orchestrator, without its media, and the form of the answer. Raises 400 for all that
    is certain to be impossible."""
    check_previews(body)
    by_url = body.response_format == "url"
    if by_url:
        services.pictures.check()
        if body.stream:
            raise invalid_request("A stream brings its pictures as b64_json.", "response_format", "invalid_value")
    if body.strength is not None and not pictures:
        raise invalid_request("'strength' is for edits of a picture.", "strength", "unsupported_parameter")
    facts = picture_facts(services)
    if not body.prompt.strip():
        raise invalid_request("'prompt' must not be blank.", "prompt", "invalid_value")
    image = image_section(
        body,
        facts,
        body.prompt,
        adapters=services.adapters,
        adapter=services.adapter(body.model),
        pictures=pictures,
        mask=mask,
    )
    size = None if image.width is None or image.height is None else (image.width, image.height)
    wanted = Wanted(
        event="image_generation" if task == GENERATE else "image_edit",
        n=image.n,
        format=image.format,
        background=body.background or "auto",
        quality=body.quality if body.quality in QUALITIES else "auto",
        by_url=by_url,
        size=size if size is not None or pictures else facts.size,
    )
    if body.stream:
        wanted.most_previews = set_previews(image, body, facts)
    inputs = ("text", "image") if pictures else ("text",)
    request = Request(
        task=task,
        inputs=inputs,
        outputs=("image",),
        params={SECTION: image},
        id=call.context.id,
        deadline_s=call.context.remaining(body.timeout),
        priority=call.context.combined_priority(body.priority),
        tenant=call.context.tenant,
    )
    return request, wanted


async def answer(services: Services, call: Call, body: ImageRequest, request: Request, wanted: Wanted) -> Reply:
    """Open a request and answer with its pictures, whole or as events. A failure before the first event has its own
    status."""
    with named_like(body):
        stream: RequestStream = await call.enter(services.open(request))
        if not body.stream:
            return await whole(services, call, stream, wanted)
        await first_event(stream)
    return Reply(events(stream, wanted), sse.HEADERS, events=True)


@contextmanager
def named_like(body: msgspec.Struct) -> Iterator[None]:
    """Let errors of stages name fields as the body names them."""
    try:
        yield
    except OmniError as error:
        raise in_words_of(body, error) from None
