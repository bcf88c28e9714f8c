"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: speech in, text out."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.http import Call, Reply, until_deadline
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.bodies import JsonBody, bring_media, read_json, reject_early_by_head
from omni_actors.entrypoints.openai.fields import NoOp, Refused, convert, decode, list_fields
from omni_actors.entrypoints.openai.forms import read_form
from omni_actors.entrypoints.openai.schemas import ClipPart, Count, Priority, Seconds
from omni_actors.entrypoints.openai.subtitles import Segment, Word, srt, vtt
from omni_actors.entrypoints.openai.tally import Tally
from omni_actors.entrypoints.openai.unread import keep_read
from omni_actors.entrypoints.services import Services
from omni_actors.media.service.uploads import Upload
from omni_actors.orchestrator import RequestStream
from omni_actors.pipelines.subgraph import Key
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.languages import chosen_language
from omni_actors.protocol.params import Transcription
from omni_actors.protocol.request import Completed, MediaRef, Request, TextDelta, Usage

TEXT = [("content-type", "text/plain; charset=utf-8")]
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
_SPEAKERS = "this model does not tell speakers apart."


class TranslationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of ``POST /v1/audio/translations``; a form's ``file`` is taken out before."""

    model: str | None = None
    language: str | None = None
    """The spoken language: a code or an English name. Empty and ``auto`` leave it to the model."""
    prompt: str | None = None
    response_format: Format | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_completion_tokens: Count | None = None
    """vLLM's field: most tokens of the transcript."""
    timeout: Seconds | None = None
    priority: Priority | None = None
    input_audio: ClipPart | None = None
    """The audio of a JSON body, in place of a form's file, in the form that the media process leaves."""


class TranscriptionRequest(TranslationRequest, forbid_unknown_fields=True, kw_only=True):
    """The fields of ``POST /v1/audio/transcriptions``."""

    timestamp_granularities: list[Literal["word", "segment"]] | None = None
    stream: bool | None = None
    stream_continuous_usage_stats: bool = False
    """vLLM's ``stream_options``, in the form in which a form has them."""

    stream_include_usage: Annotated[bool | None, NoOp("The last event of a stream always has the usage.")] = None
    chunking_strategy: Annotated[Any, NoOp("The model splits long audio itself.")] = None
    include: Annotated[list[Any] | None, Refused("log probabilities of transcriptions are not served.", ([],))] = None
    keywords: Annotated[list[Any] | None, Refused("put them into the prompt.", ([],))] = None
    languages: Annotated[list[Any] | None, Refused("give one language, or none.", ([],))] = None
    known_speaker_names: Annotated[list[Any] | None, Refused(_SPEAKERS, ([],))] = None
    known_speaker_references: Annotated[list[Any] | None, Refused(_SPEAKERS, ([],))] = None
    vad_filter: Annotated[Any, Refused("silence is left in.", (False, "false"))] = None


class _File(NamedTuple):
    """A form's file."""

    upload: Upload
    name: str | None
    content_type: str | None

    async def decode(self, longest_s: float | None) -> list[MediaRef]:
        kind, name = self.content_type, self.name
        return [await self.upload.decode(content_type=kind, filename=name, max_seconds=longest_s)]


B = TypeVar("B", bound=TranslationRequest)

_ANY = re.compile(b"")


async def transcribe(services: Services, call: Call) -> Reply:
    return await _create(services, call, TranscriptionRequest, "transcription")


async def translate(services: Services, call: Call) -> Reply:
    return await _create(services, call, TranslationRequest, "translation")


async def _create(services: Services, call: Call, kind: type[TranslationRequest], task: str) -> Reply:
    """Transcribe or translate. The reply waits for the first event, so that an earlier failure still has its own
    status."""
    services.task(task, inputs=("audio",), outputs=("text",))
    services.media_process()
    needs = (task, ("audio",), ("text",))
    body: TranslationRequest
    recording: _File | JsonBody
    if call.content_type == "multipart/form-data":
        body, recording = await _read_form(services, call, needs, kind)
    elif call.content_type in ("application/json", ""):
        body, recording = await _read_json(services, call, needs, kind)
    else:
        raise invalid_request("The body is a form (multipart/form-data) with a file, or JSON with 'input_audio'.")
    services.model(body.model, adapted=False)
    format = body.response_format or "json"
    language = chosen_language(body.language, services.plan.languages)
    granularities = getattr(body, "timestamp_granularities", None) or []
    if granularities and format != "verbose_json":
        raise invalid_request(
            "'timestamp_granularities' needs response_format 'verbose_json'.", "timestamp_granularities"
        )
    streamed = bool(getattr(body, "stream", False))
    if streamed and format != "json":
        raise invalid_request("A streamed transcription has response_format 'json'.", "response_format")
    counted = getattr(body, "stream_continuous_usage_stats", False)
    if counted and not streamed:
        raise invalid_request(
            "'stream_continuous_usage_stats' is only allowed when 'stream' is true.", "stream_continuous_usage_stats"
        )
    timed = format in ("srt", "vtt", "verbose_json")
    request = Request(
        task=task,
        inputs=("audio",),
        outputs=("text",),
        params={
            "transcription": Transcription(
                language=language,
                prompt=body.prompt,
                temperature=body.temperature or 0.0,
                timestamps="word" if "word" in granularities else "segment" if timed else "none",
                task="translate" if task == "translation" else "transcribe",
                max_tokens=body.max_completion_tokens,
            )
        },
        id=call.context.id,
        deadline_s=call.context.remaining(body.timeout),
        priority=call.context.combined_priority(body.priority),
        tenant=call.context.tenant,
    )
    keep_read(services, request, body)
    await bring_media(services, call, request, body.timeout, recording.decode)
    (clip,) = request.media
    stream = await call.enter(services.open(request))
    await stream.peek()
    if streamed:
        return Reply(_stream(services, stream, task, counted=counted), sse.HEADERS, events=True)
    return await _whole(stream, format, task, clip.seconds, language, granularities)


async def _read_json(services: Services, call: Call, needs: Key, kind: type[B]) -> tuple[B, JsonBody]:
    """Return the fields, and the undecoded clip, which is freed when the call is over."""
    read = await read_json(services, call, needs, _ANY, (), "input_audio")
    body = decode(read.json, kind)
    if body.input_audio is None or read.modalities != ("audio",):
        raise invalid_request("Missing required field 'input_audio'.", "input_audio", "missing_required_parameter")
    return body, read


async def _read_form(services: Services, call: Call, needs: Key, kind: type[B]) -> tuple[B, _File]:
    """Return the fields and the file, which is freed when the call is over."""
    if not call.body.received:
        reject_early_by_head(services, call, needs)

    async def take(pieces: AsyncIterator[bytes], filename: str | None, content_type: str | None) -> _File:
        with until_deadline(call.context):
            upload = await call.enter(services.media_process().upload(pieces, param="file"))
        return _File(upload, filename, content_type)

    content_type = call.headers[b"content-type"].decode("latin-1")
    fields, file = await read_form(call.body, content_type, "file", take, list_fields(kind))
    body = convert(fields, kind)
    if file is None or body.input_audio is not None:
        raise invalid_request("A form brings its audio in the field 'file'.", "file", "missing_required_parameter")
    return body, file


async def _whole(
    stream: RequestStream, format: Format, task: str, seconds: float, language: str | None, granularities: list[str]
) -> Reply:
    texts: list[str] = []
    segments: list[Segment] = []
    words: list[Word] = []
    async for event in stream:
        if isinstance(event, TextDelta):
            texts.append(event.text)
            meta = event.meta or {}
            language = meta.get("language") or language
            segments += msgspec.convert(meta.get("segments", []), list[Segment])
            words += msgspec.convert(meta.get("words", []), list[Word])
    text = "".join(texts).strip()
    if format == "json":
        duration = {"type": "duration", "seconds": seconds}
        return Reply(sse.encode({"text": text, "usage": duration} if task == "transcription" else {"text": text}))
    if format == "text":
        return Reply((text + "\n").encode(), TEXT)
    if format == "srt":
        return Reply(srt(segments).encode(), TEXT)
    if format == "vtt":
        return Reply(vtt(segments).encode(), [("content-type", "text/vtt; charset=utf-8")])
    for number, segment in enumerate(segments):
        segment.id = number
    verbose: dict[str, Any] = {"language": language or "", "duration": seconds, "text": text}
    if not granularities or "segment" in granularities:
        verbose["segments"] = segments
    if task == "transcription":
        if "word" in granularities:
            verbose["words"] = words
        verbose["usage"] = {"type": "duration", "seconds": seconds}
    return Reply(sse.encode(verbose))


async def _stream(
    services: Services, stream: RequestStream, task: str, *, counted: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream; with ``counted``, each delta has the usage so far."""
    texts: list[str] = []
    tally = Tally()
    async for event in stream:
        if isinstance(event, TextDelta):
            tally.take(event)
            delta = event.text if texts else event.text.lstrip()
            if delta:
                texts.append(delta)
                event_data: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
                yield sse.event(sse.encode(event_data | ({"usage": _tokens(tally.of())} if counted else {})))
        elif isinstance(event, Completed):
            used = event.usage.get(services.plan.tasks[task].outputs["text"], Usage())
            done = {"type": "transcript.text.done", "text": "".join(texts), "usage": _tokens(used)}
            yield sse.event(sse.encode(done))


def _tokens(used: Usage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": used.prompt_tokens,
        "output_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }
