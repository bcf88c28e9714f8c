"""``POST /v1/audio/speech``: text in, speech out, as bytes or as events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import audio, sse
from omni_actors.entrypoints.openai.bodies import bring_media, read_json
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.parameters import own_parameters
from omni_actors.entrypoints.openai.speech_request import TASK, SpeechRequest, has_reference, may_clone, speech_section
from omni_actors.entrypoints.openai.unread import keep_read
from omni_actors.entrypoints.services import Services
from omni_actors.entrypoints.tts_input import check_tts_input
from omni_actors.media.service.client import AudioEncoder
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Completed, MediaChunk, Request

_REFERENCE = re.compile(rb'"ref_audio"|\\u00[567]')
"""Matches every body with a reference clip; letters of the name may be escaped."""


async def create(services: Services, call: Call) -> Reply:
    """Speak a text. The reply waits for the first audio, so that an earlier failure still has its own status."""
    clip = "ref_audio" if may_clone(services) else None
    read = await read_json(services, call, (TASK, ("text",), ("audio",)), _REFERENCE, (), clip)
    body = decode(read.json, SpeechRequest)
    services.model(body.model, adapted=False)
    services.task(TASK, inputs=("text",), outputs=("audio",))
    check_tts_input(body.input, most=services.plan.input_limit(TASK, "text"))
    if body.stream is False and body.stream_format == "sse":
        raise invalid_request("'stream': false and 'stream_format': 'sse' contradict each other.", "stream")
    cloned = has_reference(services, body, read.modalities)
    inputs = ("text", "audio") if cloned else ("text",)
    request = Request(
        task=TASK,
        inputs=inputs,
        outputs=("audio",),
        params={
            "speech": speech_section(services, body),
            **own_parameters(services, body, TASK, inputs, ("audio",)),
        },
        id=call.context.id,
        deadline_s=call.context.remaining(body.timeout),
        priority=call.context.combined_priority(body.priority),
        tenant=call.context.tenant,
    )
    keep_read(services, request, body)
    if cloned:
        await bring_media(services, call, request, body.timeout, read.decode)
    stream = await call.enter(services.open(request))
    first = await _first_audio(stream)
    rate, channels = audio.pcm_of(first)
    format = body.response_format or "mp3"
    # A WAV file's head needs the length, so WAV is streamed only on request; the other formats need no length.
    whole = body.stream is False or (format == "wav" and body.stream is None and body.stream_format is None)
    encoder = await call.enter(services.media_process().encoder(format, rate, channels, streaming=not whole))
    described = [
        ("x-sample-rate", str(rate)),
        ("x-channels", str(channels)),
        ("x-bits-per-sample", "16"),
    ]
    if body.stream_format == "sse":
        base64 = sse.Base64(audio.frame_of(format, channels))
        pieces = _events(services, stream, encoder, first, base64)
        return Reply(pieces, [*sse.HEADERS, *described], events=True)
    headers = [("content-type", audio.content_type(format, rate, channels)), *described]
    if whole:
        return Reply(b"".join([piece async for piece in _bytes(stream, encoder, first)]), headers)
    return Reply(_bytes(stream, encoder, first), [*headers, sse.UNBUFFERED])


async def _first_audio(stream: RequestStream) -> MediaChunk:
    """Return the first audio. Raises 400 if the request completes without audio: the model found nothing to speak."""
    async for event in stream:
        if isinstance(event, MediaChunk) and event.data:
            return event
    raise invalid_request("'input' gave no audio: it contains nothing that this model can say.", "input", "no_audio")


async def _bytes(stream: RequestStream, encoder: AudioEncoder, first: MediaChunk) -> AsyncGenerator[bytes, None]:
    if piece := await encoder.feed(first.data):
        yield piece
    async for event in stream:
        if isinstance(event, MediaChunk) and (piece := await encoder.feed(event.data)):
            yield piece
    if piece := await encoder.finish():
        yield piece


async def _events(
    services: Services, stream: RequestStream, encoder: AudioEncoder, first: MediaChunk, base64: sse.Base64
) -> AsyncGenerator[bytes, None]:
    read = written = 0
    if data := base64.feed(await encoder.feed(first.data)):
        yield _delta(data)
    async for event in stream:
        if isinstance(event, MediaChunk):
            if data := base64.feed(await encoder.feed(event.data)):
                yield _delta(data)
        elif isinstance(event, Completed):
            read = sum(usage.prompt_tokens for usage in event.usage.values())
            written = sum(usage.completion_tokens for usage in event.usage.values())
    if data := base64.feed(await encoder.finish()) + base64.finish():
        yield _delta(data)
    done = {
        "type": "speech.audio.done",
        "usage": {"input_tokens": read, "output_tokens": written, "total_tokens": read + written},
    }
    yield sse.event(sse.encode(done))


def _delta(data: bytes) -> bytes:
    return b'data: {"type":"speech.audio.delta","audio":"%b"}\n\n' % data
