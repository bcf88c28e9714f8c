"""``POST /v1/chat/completions``: text and speech in, text and speech out, whole or streamed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import audio, sse
from omni_actors.entrypoints.openai.bodies import bring_media, read_json
from omni_actors.entrypoints.openai.constraints import constraint_of
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.images import chat as images
from omni_actors.entrypoints.openai.images.chat_request import asks_for_pictures, edits, least_needs, media_inputs
from omni_actors.entrypoints.openai.messages import prompt_messages
from omni_actors.entrypoints.openai.parameters import own_parameters
from omni_actors.entrypoints.openai.sampling import chat_logprobs, sampling_of, usage_of, used
from omni_actors.entrypoints.openai.schemas import ChatRequest, MediaKwargs
from omni_actors.entrypoints.openai.speech_request import resolve_voice, set_fields
from omni_actors.entrypoints.openai.tally import Tally
from omni_actors.entrypoints.openai.unread import keep_read
from omni_actors.entrypoints.services import Services
from omni_actors.media.limits import PIECE
from omni_actors.media.service.client import AudioEncoder
from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.nesting import check_nesting
from omni_actors.protocol.params import Prompt, Speech, Transcription
from omni_actors.protocol.request import Completed, MediaChunk, Request, TextDelta, TokenLogprob

TASK = "chat"

DEFAULT_RATE = 24_000

_MEDIA = re.compile(rb'"input_audio"|"(?:audio|image|video)_url"|\\u00[567]')
"""Matches every body with media parts; letters of the types may be escaped. A false match only costs a detour."""


@dataclass(slots=True)
class _ReplyFormat:
    """The form that the client wants of its response."""

    id: str
    model: str
    created: int
    choices: int
    spoken: bool
    format: str
    audio_id: str
    logprobs: bool
    include_usage: bool
    tally: Tally | None
    """Counts the usage so far for each chunk of a stream, if the client asks for that."""

    def so_far(self, index: int = 0) -> dict[str, Any] | None:
        """Return the usage for the next chunk of a choice."""
        return None if self.tally is None else used(self.tally.of(index))


async def create(services: Services, call: Call) -> Reply:
    """Answer a chat. A stream waits for its first event, so that an earlier failure still has its own status."""
    read = await read_json(services, call, least_needs(services), _MEDIA, media_inputs(services), alpha=edits(services))
    if asks_for_pictures(services, read.json):
        return await images.create(services, call, read)
    body = decode(read.json, ChatRequest)
    model = services.model(body.model)
    spoken = "audio" in (body.modalities or ())
    request = _request(services, call, body, read.modalities, spoken)
    wanted = _ReplyFormat(
        id=f"chatcmpl-{call.context.unique}",
        model=model,
        created=int(time.time()),
        choices=body.n or 1,
        spoken=spoken,
        format=(body.audio and body.audio.format) or ("pcm16" if body.stream else "wav"),
        audio_id=f"audio_{secrets.token_hex(16)}" if spoken else "",  # the id gives access to the transcript
        logprobs=bool(body.logprobs),
        include_usage=body.usage_last,
        tally=Tally() if body.usage_always else None,
    )
    if read.modalities:
        await bring_media(services, call, request, body.timeout, read.decode)
    stream = await call.enter(services.open(request))
    if not body.stream:
        return Reply(await _whole(services, call, stream, wanted))
    first = await stream.peek()
    if wanted.tally is not None:
        wanted.tally.begin(first)
    if not spoken:
        return Reply(_text_stream(services, call, stream, wanted), sse.HEADERS, events=True)
    rate = services.plan.sample_rate
    known = [("x-sample-rate", str(rate))] if wanted.format == "pcm16" and rate is not None else []
    return Reply(_spoken_stream(services, call, stream, wanted), [*sse.HEADERS, *known], events=True)


def _request(services: Services, call: Call, body: ChatRequest, media: tuple[str, ...], spoken: bool) -> Request:
    """Return the request for the orchestrator, without its media, whose modalities are ``media`` in order. Raises 400
    for anything that the model or this server cannot do."""
    inputs = ("text", *sorted(set(media))) if media else ("text",)
    # A spoken answer comes with its transcript, so the text is needed in either case.
    outputs = ("text", "audio") if spoken else ("text",)
    services.task(TASK, inputs=inputs, outputs=outputs)
    constraint = constraint_of(services.plan, TASK, body.response_format, body.structured_outputs)
    if body.modalities is not None and (not body.modalities or len(set(body.modalities)) != len(body.modalities)):
        raise invalid_request("'modalities' must name each modality once.", "modalities")
    if not spoken:
        for name in ("audio", "voice", "speaker", "language", "instructions"):
            value = getattr(body, name)
            if value is not None and not (name == "language" and not value.strip()):
                raise invalid_request(f"'{name}' needs modalities with 'audio'.", name)
    if spoken and (body.n or 1) > 1:
        raise invalid_request("A spoken answer is one choice: 'n' must be 1.", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if body.max_tokens not in (None, max_tokens):
        raise invalid_request("'max_tokens' and 'max_completion_tokens' contradict each other.", "max_tokens")
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid_request(
                "'continue_final_message' and 'add_generation_prompt' exclude each other.", "continue_final_message"
            )
        if type(body.messages[-1]).__struct_config__.tag != "assistant":
            raise invalid_request("'continue_final_message' needs an assistant's message last.", "messages")
    try:
        if body.chat_template_kwargs:
            check_nesting(body.chat_template_kwargs, "chat_template_kwargs")
            msgspec.msgpack.encode(body.chat_template_kwargs)
    except OverflowError:  # numbers in JSON are unbounded, in a frame they have 64 bits
        raise invalid_request(
            "'chat_template_kwargs' holds a number of more than 64 bits.", "chat_template_kwargs"
        ) from None
    params: dict[str, Any] = {
        "prompt": Prompt(
            messages=prompt_messages(body.messages, media, services.history),
            add_generation_prompt=not body.continue_final_message
            if body.add_generation_prompt is None
            else body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs or {},
            media_kwargs=_media_kwargs(services, body),
        ),
        "sampling": sampling_of(
            body,
            max_tokens=max_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=constraint,
            lora=services.adapter(body.model),
        ),
    }
    params |= own_parameters(services, body, TASK, inputs, outputs)
    if "audio" in inputs:
        params["transcription"] = Transcription(clips=media.count("audio"))
    if spoken:
        own = body.audio.voice if body.audio is not None else None
        voice = resolve_voice(services, {"audio.voice": own, "voice": body.voice, "speaker": body.speaker})
        params["speech"] = speech = Speech(voice=voice, seed=body.seed or 0)
        set_fields(services, speech, {"language": body.language, "instructions": body.instructions})
    request = Request(
        task=TASK,
        inputs=inputs,
        outputs=outputs,
        params=params,
        id=call.context.id,
        deadline_s=call.context.remaining(body.timeout),
        priority=call.context.combined_priority(body.priority),
        tenant=call.context.tenant,
    )
    keep_read(services, request, body)
    return request


def _media_kwargs(services: Services, body: ChatRequest) -> dict[str, Any]:
    """Return the stages' part of the options of videos; the media process has the others, such as
    sampling of frames."""
    if body.mm_processor_kwargs is None and body.use_audio_in_video is None:
        return {}
    given = body.mm_processor_kwargs or MediaKwargs()
    use_audio = given.use_audio_in_video
    if None not in (use_audio, body.use_audio_in_video) and use_audio != body.use_audio_in_video:
        raise invalid_request("'use_audio_in_video' is given twice with different values.", "use_audio_in_video")
    use_audio = use_audio or body.use_audio_in_video
    if (use_audio or given.fps or given.max_frames) and "video" not in services.plan.tasks[TASK].entries:
        param = "use_audio_in_video" if body.use_audio_in_video else "mm_processor_kwargs"
        raise invalid_request(
            f"'{param}' is for videos, which this model does not take.", param, "unsupported_parameter"
        )
    return {"use_audio_in_video": True} if use_audio else {}


async def _whole(services: Services, call: Call, stream: RequestStream, wanted: _ReplyFormat) -> bytes:
    texts: list[list[str]] = [[] for _ in range(wanted.choices)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(wanted.choices)]
    finish = ["stop"] * wanted.choices
    encoder: AudioEncoder | None = None
    base64 = sse.Base64()
    encoded: list[bytes] = []
    shape = _silence(services) if wanted.spoken else (0, 0)
    usage: dict[str, Any] | None = None

    def keep(delta: TextDelta) -> bool:
        texts[delta.index].append(delta.text)
        if delta.logprobs:
            logprobs[delta.index].extend(delta.logprobs)
        if delta.finish_reason is not None:
            finish[delta.index] = delta.finish_reason
        return True

    stream.set_text_callback(keep)
    while usage is None:
        event = await stream.receive()
        if isinstance(event, TextDelta):
            keep(event)
        elif isinstance(event, MediaChunk):
            if encoder is None:
                shape = audio.pcm_of(event)
                encoder = await _encoder(services, call, wanted, *shape, streaming=False)
            encoded.append(base64.feed(await encoder.feed(event.data)))
        elif isinstance(event, Completed):
            usage = usage_of(services.plan, TASK, event.usage)
    choices = []
    for index in range(wanted.choices):
        text = "".join(texts[index])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if wanted.spoken:
            if encoder is None:
                encoder = await _encoder(services, call, wanted, *shape, streaming=False)
            rest = await encoder.finish()
            for at in range(0, len(rest), PIECE):  # a WAV file arrives in one piece
                encoded.append(base64.feed(rest[at : at + PIECE]))
                await trio.lowlevel.checkpoint()
            encoded.append(base64.finish())
            services.history.put(wanted.audio_id, text)
            message["content"] = None
            message["audio"] = {
                "id": wanted.audio_id,
                "data": msgspec.Raw(b"".join((b'"', *encoded, b'"'))),
                "expires_at": services.history.expires_at(),
                "transcript": text,
            }
        choice = {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(logprobs[index]) if wanted.logprobs else None,
            "finish_reason": finish[index],
        }
        if wanted.spoken:
            choice["audio_metadata"] = audio.metadata_of(wanted.format, *shape)
        choices.append(choice)
    return sse.encode(
        {
            "id": wanted.id,
            "object": "chat.completion",
            "created": wanted.created,
            "model": wanted.model,
            "choices": choices,
            "usage": usage,
        }
    )


async def _encoder(
    services: Services, call: Call, wanted: _ReplyFormat, rate: int, channels: int, *, streaming: bool
) -> AudioEncoder:
    return await call.enter(services.media_process().encoder(wanted.format, rate, channels, streaming=streaming))


def _silence(services: Services) -> tuple[int, int]:
    """Return rate and channels for an answer without audio: clients get an empty file instead of none."""
    return services.plan.sample_rate or DEFAULT_RATE, 1


def _choice(index: int, delta: bytes, finish: str | None = None, logprobs: Any = None) -> bytes:
    return b"".join(
        (
            b'{"index":%d,"delta":' % index,
            delta,
            b',"logprobs":',
            b"null" if logprobs is None else sse.encode(logprobs),
            b',"finish_reason":',
            b"null}" if finish is None else b'"%s"}' % finish.encode(),
        )
    )


def _audio_choice(data: bytes, metadata: bytes) -> bytes:
    """Return a choice with a piece of encoded audio."""
    return _choice(0, b'{"audio":{"data":"%b"}}' % data)[:-1] + b',"audio_metadata":%b}' % metadata


def _template(wanted: _ReplyFormat, modality: str) -> sse.Template:
    return sse.Template(
        wanted.id,
        "chat.completion.chunk",
        wanted.created,
        wanted.model,
        usage=wanted.include_usage,
        modality=modality,
    )


async def _text_stream(
    services: Services, call: Call, stream: RequestStream, wanted: _ReplyFormat
) -> AsyncGenerator[bytes, None]:
    template, tally = _template(wanted, "text"), wanted.tally
    role = b'{"role":"assistant","content":""}'
    made = [template.chunk(_choice(index, role), wanted.so_far(index)) for index in range(wanted.choices)]
    texts = [template.around(_choice(index, b'{"content":%b}')) for index in range(wanted.choices)]

    def write_immediately(event: TextDelta) -> bool:
        plain = event.finish_reason is None and bool(event.text)
        return plain and call.write_now(texts[event.index] % sse.encode(event.text))

    if not wanted.logprobs and tally is None:
        stream.set_text_callback(write_immediately)
    async for event in stream:
        if isinstance(event, TextDelta):
            logprobs = chat_logprobs(event.logprobs) if wanted.logprobs else None
            if tally is not None:
                tally.take(event)
            if event.finish_reason is None and logprobs is None and tally is None:
                if event.text:
                    made.append(texts[event.index] % sse.encode(event.text))
            elif event.text or logprobs or event.finish_reason is not None:
                delta = b'{"content":%b}' % sse.encode(event.text) if event.text else b"{}"
                choice = _choice(event.index, delta, event.finish_reason, logprobs)
                made.append(template.chunk(choice, wanted.so_far(event.index)))
        elif isinstance(event, Completed) and wanted.include_usage:
            made.append(template.usage(usage_of(services.plan, TASK, event.usage)))
        if made and not stream.waiting:
            yield b"".join(made)
            made.clear()
    made.append(sse.DONE)
    yield b"".join(made)


async def _spoken_stream(
    services: Services, call: Call, stream: RequestStream, wanted: _ReplyFormat
) -> AsyncGenerator[bytes, None]:
    """Yield transcript and audio in the order in which they are produced. The first chunk has the id, the last one the
    finish reason and ``expires_at``; each chunk with audio gives its rate and channels."""
    template, sounding, tally = _template(wanted, "text"), _template(wanted, "audio"), wanted.tally
    first = {"role": "assistant", "audio": {"id": wanted.audio_id, "transcript": ""}}
    yield template.chunk(_choice(0, sse.encode(first)), wanted.so_far())
    encoder: AudioEncoder | None = None
    base64 = sse.Base64()
    metadata = b""
    transcript: list[str] = []
    finish = "stop"
    async for event in stream:
        if isinstance(event, TextDelta):
            finish = event.finish_reason or finish
            logprobs = chat_logprobs(event.logprobs) if wanted.logprobs else None
            if tally is not None:
                tally.take(event)
            if event.text or logprobs:
                transcript.append(event.text)
                delta = b'{"audio":{"transcript":%b}}' % sse.encode(event.text)
                yield template.chunk(_choice(0, delta, None, logprobs), wanted.so_far())
        elif isinstance(event, MediaChunk):
            if encoder is None:
                rate, channels = audio.pcm_of(event)
                base64 = sse.Base64(audio.frame_of(wanted.format, channels))
                metadata = sse.encode(audio.metadata_of(wanted.format, rate, channels))
                encoder = await _encoder(services, call, wanted, rate, channels, streaming=True)
            if data := base64.feed(await encoder.feed(event.data)):
                yield sounding.chunk(_audio_choice(data, metadata), wanted.so_far())
        elif isinstance(event, Completed):
            if encoder is None:
                metadata = sse.encode(audio.metadata_of(wanted.format, *_silence(services)))
                encoder = await _encoder(services, call, wanted, *_silence(services), streaming=True)
            usage = usage_of(services.plan, TASK, event.usage)
            all_used = None if tally is None else usage
            if data := base64.feed(await encoder.finish()) + base64.finish():
                yield sounding.chunk(_audio_choice(data, metadata), all_used)
            services.history.put(wanted.audio_id, "".join(transcript))
            expires = b'{"audio":{"expires_at":%d}}' % services.history.expires_at()
            yield sounding.chunk(_choice(0, expires, finish), all_used)
            if wanted.include_usage:
                yield template.usage(usage)
    yield sse.DONE
