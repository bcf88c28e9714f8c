"""Answers with pictures as server-sent events: previews, then each picture as soon as it is finished."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.images.encoding import base64_pieces
from omni_actors.entrypoints.openai.images.reply import Wanted, no_picture, size_text
from omni_actors.entrypoints.openai.images.usage import tokens_of, usage_of
from omni_actors.entrypoints.openai.keepalive import with_comments
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.request import Completed, MediaChunk, Usage

Finished = tuple[MediaChunk, Mapping[str, Usage]]
"""A preview or a picture, and the usage to tell with it."""


async def pictures_of(stream: RequestStream, n: int) -> AsyncGenerator[bytes | Finished, None]:
    """Yield comments for the reader's proxies, previews, and each finished picture with the usage to tell with it.

    The usage of a request is known at its end, so the last of ``n`` pictures waits for the end; the pictures before it
    have an empty usage.
    """
    held: MediaChunk | None = None
    finished = 0
    async with aclosing(with_comments(stream)) as received:
        async for event in received:
            if isinstance(event, bytes):
                yield event
            elif isinstance(event, MediaChunk):
                if event.meta.get("preview"):
                    yield event, {}
                    continue
                if held is not None:
                    yield held, {}
                finished += 1
                held = event if finished >= n else None
                if held is None:
                    yield event, {}
            elif isinstance(event, Completed):
                if held is None:
                    raise no_picture()
                yield held, event.usage


async def events(stream: RequestStream, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    """Yield OpenAI's events of a stream of pictures, in pieces. The usages of its pictures add up to the request's."""
    previews: Counter[int] = Counter()
    async with aclosing(pictures_of(stream, wanted.n)) as received:
        async for event in received:
            if isinstance(event, bytes):
                yield event
                continue
            picture, used = event
            index = picture.meta["index"]
            if not (step := picture.meta.get("preview")):
                fields = _fields(wanted, picture, "completed") | {"usage": usage_of(tokens_of(picture), used)}
            elif wanted.most_previews is None or previews[index] < wanted.most_previews:
                fields = _fields(wanted, picture, "partial_image")
                fields |= {"partial_image_index": previews[index], "step": step}
                previews[index] += 1
            else:
                continue
            for piece in _event(fields, picture.data):
                yield piece


def _fields(wanted: Wanted, picture: MediaChunk, end: str) -> dict[str, Any]:
    """Return the fields that all events have, beside the picture itself."""
    meta = picture.meta
    size = size_text(picture)
    if meta.get("preview") and wanted.size is not None:  # a preview may be smaller than the picture that it shows
        size = "{}x{}".format(*wanted.size)
    beside = {"layer": meta["layer"]} if "layer" in meta else {}
    return {
        "type": f"{wanted.event}.{end}",
        "created_at": int(time.time()),
        "size": size,
        "quality": wanted.quality,
        "background": wanted.background,
        "output_format": meta["format"],
        "index": meta["index"],
        "seed": meta["seed"],
        **beside,
    }


def _event(fields: Mapping[str, Any], data: bytes) -> Iterator[bytes]:
    """Yield one event in pieces, so that no call works on the whole of a large picture."""
    yield b'event: %b\ndata: %b,"b64_json":"' % (fields["type"].encode(), sse.encode(fields)[:-1])
    yield from base64_pieces(data)
    yield b'"}\n\n'
