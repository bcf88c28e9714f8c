"""Answers with pictures: whole, as JSON."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.images.encoding import base64_of
from omni_actors.entrypoints.openai.images.files import url_of
from omni_actors.entrypoints.openai.images.usage import tokens_of, usage_of
from omni_actors.entrypoints.services import Services
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.request import Completed, MediaChunk


@dataclass(slots=True)
class Wanted:
    """The form in which the client wants the pictures.

    Args:
        event: Begin of the names of events: ``image_generation`` or ``image_edit``.
        n: The number of pictures.
        format: The format of their files.
        background: ``transparent``, ``opaque`` or ``auto``.
        quality: The quality that the client named, to be repeated in events.
        by_url: Whether the pictures are fetched by URL.
        size: Width and height, as far as they are known.
        most_previews: The most previews of one picture; ``None`` for no bound.
    """

    event: str
    n: int
    format: str
    background: str
    quality: str
    by_url: bool = False
    size: tuple[int, int] | None = None
    most_previews: int | None = 0
    created: int = field(default_factory=lambda: int(time.time()))


def place_of(picture: MediaChunk) -> tuple[int, int]:
    """Return a picture's place in an answer: its index, and its layer."""
    return picture.meta["index"], picture.meta.get("layer", 0)


def size_text(picture: MediaChunk) -> str:
    """Return the size of a picture as OpenAI writes it."""
    return f"{picture.meta['width']}x{picture.meta['height']}"


async def collect(stream: RequestStream) -> tuple[list[MediaChunk], Completed]:
    """Return the finished pictures of a request in order, and its end."""
    pictures: dict[tuple[int, int], MediaChunk] = {}
    while True:
        event = await stream.receive()
        if isinstance(event, MediaChunk):
            if not event.meta.get("preview"):
                pictures[place_of(event)] = event
        elif isinstance(event, Completed):
            if not pictures:
                raise no_picture()
            return [pictures[place] for place in sorted(pictures)], event


async def whole(services: Services, call: Call, stream: RequestStream, wanted: Wanted) -> Reply:
    """Return OpenAI's object of images."""
    pictures, completed = await collect(stream)
    tokens = sum(map(tokens_of, pictures))
    usage = usage_of(tokens, completed.usage)
    usage["output_tokens_details"] = {"image_tokens": tokens, "text_tokens": 0}
    made: dict[str, Any] = {
        "created": wanted.created,
        "data": [await _datum(services, call, picture, by_url=wanted.by_url) for picture in pictures],
        "output_format": pictures[0].meta["format"],
        "size": size_text(pictures[0]),
        "usage": usage,
    }
    if wanted.background != "auto":
        made["background"] = wanted.background
    return Reply(sse.encode(made))


async def _datum(services: Services, call: Call, picture: MediaChunk, *, by_url: bool) -> dict[str, Any]:
    """Return the entry of one picture. Its seed makes the picture again, as a picture of its own."""
    meta = picture.meta
    beside = {"seed": meta["seed"], **({"layer": meta["layer"]} if "layer" in meta else {})}
    if by_url:
        token = services.pictures.put(picture.data, meta["format"])
        return {"url": url_of(services, call, token), **beside}
    pieces = await base64_of(picture.data)
    return {"b64_json": msgspec.Raw(b"".join((b'"', *pieces, b'"'))), **beside}


def no_picture() -> OmniError:
    """Return the error for a request that completed without a picture."""
    return OmniError(ErrorInfo(message="The model made no picture.", code="stage_failed"))
