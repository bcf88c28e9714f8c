"""Chats with pictures in the answer: in ``message.images`` and ``delta.images``, as data URLs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.bodies import JsonBody, bring_media
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.images.chat_request import ImageChatRequest, image_chat_request
from omni_actors.entrypoints.openai.images.create import named_like
from omni_actors.entrypoints.openai.images.encoding import CONTENT_TYPES, base64_of, base64_pieces
from omni_actors.entrypoints.openai.images.reply import no_picture, place_of
from omni_actors.entrypoints.openai.images.usage import tokens_of, usage_of
from omni_actors.entrypoints.openai.keepalive import first_event, with_comments
from omni_actors.entrypoints.services import Services
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta, Usage

_MARK = b"\x00"
"""The place of a picture in an encoded chunk; no JSON contains this byte."""


@dataclass(slots=True)
class _ReplyFormat:
    """The form that the client wants of its response. With ``content``, pictures are parts of the message's content."""

    id: str
    model: str
    created: int
    content: bool
    include_usage: bool


async def create(services: Services, call: Call, read: JsonBody) -> Reply:
    """Answer a chat with pictures."""
    body = decode(read.json, ImageChatRequest)
    model = services.model(body.model)
    request, ask = image_chat_request(services, call, body, read.modalities)
    options = body.stream_options
    wanted = _ReplyFormat(
        id=f"chatcmpl-{call.context.unique}",
        model=model,
        created=int(time.time()),
        content=body.images_as == "content",
        include_usage=options is not None and bool(options.include_usage or options.continuous_usage_stats),
    )
    with named_like(body):
        if ask.pictures:
            await bring_media(services, call, request, body.timeout, read.decode)
            request.media = tuple(request.media[place] for place in ask.pictures)
        else:
            services.reject_early(request, priority_may_drop=False)
        stream = await call.enter(services.open(request))
        if not body.stream:
            return Reply(await _whole(stream, wanted))
        await first_event(stream)
    return Reply(_stream(stream, wanted), sse.HEADERS, events=True)


async def _whole(stream: RequestStream, wanted: _ReplyFormat) -> bytes:
    texts: list[str] = []
    pictures: dict[tuple[int, int], MediaChunk] = {}
    used: dict[str, Usage] | None = None
    while used is None:
        event = await stream.receive()
        if isinstance(event, TextDelta):
            texts.append(event.text)
        elif isinstance(event, MediaChunk):
            pictures[place_of(event)] = event
        elif isinstance(event, Completed):
            used = event.usage
    if not pictures:
        raise no_picture()
    parts: list[dict[str, Any]] = []
    for _, picture in sorted(pictures.items()):
        url = msgspec.Raw(b"".join((b'"', _head(picture), *await base64_of(picture.data), b'"')))
        parts.append(_part(picture, url))
    text = "".join(texts)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if wanted.content:
        message["content"] = [*([{"type": "text", "text": text}] if text else []), *parts]
    else:
        message["images"] = parts
    return sse.encode(
        {
            "id": wanted.id,
            "object": "chat.completion",
            "created": wanted.created,
            "model": wanted.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": _usage(sum(map(tokens_of, pictures.values())), used),
        }
    )


async def _stream(stream: RequestStream, wanted: _ReplyFormat) -> AsyncGenerator[bytes, None]:
    """Yield chunks in OpenAI's form, each picture whole in one of them."""
    painted, written = (_template(wanted, modality) for modality in ("image", "text"))
    yield painted.chunk(_choice({"role": "assistant", "content": ""}))
    tokens = 0
    async with aclosing(with_comments(stream)) as received:
        async for event in received:
            if isinstance(event, bytes):
                yield event
            elif isinstance(event, TextDelta):
                if event.text:
                    yield written.chunk(_choice({"content": event.text}))
            elif isinstance(event, MediaChunk):
                tokens += tokens_of(event)
                part = _part(event, msgspec.Raw(b'"%b"' % _MARK))
                delta = {"content" if wanted.content else "images": [part]}
                before, _, behind = painted.chunk(_choice(delta)).partition(_MARK)
                yield before + _head(event)
                for piece in base64_pieces(event.data):
                    yield piece
                yield behind
            elif isinstance(event, Completed):
                if not tokens:
                    raise no_picture()
                yield painted.chunk(_choice({}, "stop"))
                if wanted.include_usage:
                    yield painted.usage(_usage(tokens, event.usage))
    yield sse.DONE


def _head(picture: MediaChunk) -> bytes:
    """Return the begin of a picture's data URL."""
    return f"data:{CONTENT_TYPES[picture.meta['format']]};base64,".encode()


def _part(picture: MediaChunk, url: Any) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": url},
        "index": picture.meta["index"],
        "seed": picture.meta["seed"],
    }


def _choice(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return sse.encode({"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish})


def _template(wanted: _ReplyFormat, modality: str) -> sse.Template:
    return sse.Template(
        wanted.id,
        "chat.completion.chunk",
        wanted.created,
        wanted.model,
        usage=wanted.include_usage,
        modality=modality,
    )


def _usage(tokens: int, used: dict[str, Usage]) -> dict[str, Any]:
    """Return a chat's usage: the tokens of its pictures are the completion's."""
    made = usage_of(tokens, used)
    return {
        "prompt_tokens": made["input_tokens"],
        "completion_tokens": tokens,
        "total_tokens": made["total_tokens"],
        "steps": made["steps"],
        "skipped_steps": made["skipped_steps"],
    }
