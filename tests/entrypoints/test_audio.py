"""Speech and transcription over HTTP: formats, framing, what is refused, and what a form may look like."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio
from tests.entrypoints.fakes import PIPELINE, RATE, SPEECH, TEXT, Server, Step, served
from tests.entrypoints.test_chat import events_of
from tests.entrypoints.test_middleware import error_of
from tests.media.harness import container, silent_video, strict_wav, tone, wav

from omni_actors.entrypoints.voices import OPENAI_VOICES
from omni_actors.pipelines.declaration import Port, Task
from omni_actors.protocol.errors import stage_died
from omni_actors.protocol.options import Option
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta, Usage

SAY = "/v1/audio/speech"
HEAR = "/v1/audio/transcriptions"

TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm;rate=24000;channels=1",
}


def sound(data: bytes, rate: int = RATE) -> MediaChunk:
    return MediaChunk(0, "audio", {"sample_rate": rate, "channels": 1}, data)


async def hear(server: Server, data: bytes, **fields: Any) -> httpx.Response:
    form = {"model": "assistant", **fields}
    return await server.client.post(HEAR, data=form, files={"file": ("a.wav", data)})


# --- speech ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "type"), TYPES.items())
async def test_formats_and_how_they_are_declared(format: str, type: str) -> None:
    async with served() as server:
        response = await server.post(SAY, {"input": "Hello.", "response_format": format})
        assert response.headers["content-type"] == type
        assert (response.headers["x-sample-rate"], response.headers["x-channels"]) == ("24000", "1")
        assert (response.headers.get("transfer-encoding") == "chunked") == (format != "wav")


async def test_mp3_is_the_default() -> None:
    async with served() as server:
        assert (await server.post(SAY, {"input": "Hello."})).headers["content-type"] == "audio/mpeg"


async def test_wav_whole_and_streamed_have_the_same_sound() -> None:
    """Whole: exact sizes. Streamed: one head in the first piece, sizes unknown, nothing behind the samples."""
    async with served() as server:
        whole = await server.post(SAY, {"input": "Hello.", "response_format": "wav"})
        assert strict_wav(whole.content) == (RATE, 1, SPEECH, len(SPEECH))
        async with server.client.stream(
            "POST", SAY, json={"input": "Hello.", "response_format": "wav", "stream": True}
        ) as streamed:
            pieces = [piece async for piece in streamed.aiter_raw()]
        assert len(pieces[0]) >= 44
        assert strict_wav(b"".join(pieces)) == (RATE, 1, SPEECH, 0xFFFFFFFF)


@pytest.mark.parametrize("format", TYPES)
async def test_whole_on_request(format: str) -> None:
    async with served() as server:
        response = await server.post(SAY, {"input": "Hello.", "response_format": format, "stream": False})
        assert int(response.headers["content-length"]) == len(response.content)


async def test_the_first_sound_leaves_before_the_last_is_made() -> None:
    go_on = trio.Event()
    script: list[Step] = [sound(SPEECH), go_on, sound(SPEECH), Completed({})]
    async with served(lambda request: script) as server:
        async with server.client.stream("POST", SAY, json={"input": "Hello.", "response_format": "pcm"}) as response:
            received = 0
            async for piece in response.aiter_raw():
                received += len(piece)
                if received == len(SPEECH) and not go_on.is_set():
                    go_on.set()
        assert received == 2 * len(SPEECH)


async def test_events() -> None:
    usage = {"vocoder": Usage(prompt_tokens=5, completion_tokens=9)}
    pieces = [SPEECH[:1000], SPEECH[1000:1002], SPEECH[1002:]]
    async with served(lambda request: [*map(sound, pieces), Completed(usage)]) as server:
        response = await server.post(SAY, {"input": "Hello.", "response_format": "pcm", "stream_format": "sse"})
        assert response.headers["content-type"].startswith("text/event-stream")
        *deltas, done = events_of(response.text)
        assert {event["type"] for event in deltas} == {"speech.audio.delta"}
        assert all(len(base64.b64decode(event["audio"])) % 2 == 0 for event in deltas)
        assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == SPEECH
        assert done == {
            "type": "speech.audio.done",
            "usage": {"input_tokens": 5, "output_tokens": 9, "total_tokens": 14},
        }


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_a_failure_on_the_way_breaks_the_stream(stream_format: str) -> None:
    async with served(lambda request: [sound(SPEECH), stage_died("vocoder")]) as server:
        received = b""
        body = {"input": "Hello.", "response_format": "pcm", "stream_format": stream_format}
        with pytest.raises(httpx.RemoteProtocolError):
            async with server.client.stream("POST", SAY, json=body) as response:
                async for piece in response.aiter_raw():
                    received += piece
        if stream_format == "audio":
            assert received == SPEECH
        else:
            assert events_of(received.decode())[-1]["error"]["code"] == "stage_died"


async def test_a_failure_before_any_sound_is_a_status() -> None:
    async with served(lambda request: [stage_died("acoustic")]) as server:
        assert "acoustic" in error_of(await server.post(SAY, {"input": "Hello."}), 503)["message"]
    async with served(lambda request: [Completed({})]) as server:
        assert error_of(await server.post(SAY, {"input": "Hello."}), 400)["param"] == "input"


@pytest.mark.parametrize(
    "text", ["", " \t\n", "...", "\N{GRINNING FACE}", "\x00", "a\x00b", None, 7, ["a"], "?!" * 5000]
)
async def test_nothing_to_say_is_a_mistake(text: Any) -> None:
    async with served() as server:
        assert error_of(await server.post(SAY, {"input": text}), 400)["param"] == "input"
        assert error_of(await server.post(SAY, {}), 400)["param"] == "input"
        assert not server.orchestrator.requests


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"response_format": "mpeg"}, "response_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"voice": ""}, "voice"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": {"id": "nobody"}}, "voice"),
        ({"stream_format": "ws"}, "stream_format"),
        ({"stream_format": "sse", "stream": False}, "stream"),
        ({"pitch": 1}, "pitch"),
    ],
)
async def test_speech_fields_that_are_refused(field: dict[str, Any], param: str) -> None:
    async with served() as server:
        assert error_of(await server.post(SAY, {"input": "Hello.", **field}), 400)["param"] == param


async def test_speech_fields_reach_the_stage() -> None:
    fields = {"voice": {"id": "bella"}, "speed": 1.5, "instructions": "whisper", "language": "en", "seed": 3}
    async with served() as server:
        assert (await server.post(SAY, {"input": "Hello.", **fields})).status_code == 200
        speech = server.orchestrator.requests[0].params["speech"]
    assert (speech.text, speech.voice, speech.speed) == ("Hello.", "bella", 1.5)
    assert (speech.instructions, speech.language, speech.seed) == ("whisper", "en", 3)


async def test_voices_are_objects_and_openais_names_stand_for_them() -> None:
    async with served() as server:
        voices = (await server.get("/v1/audio/voices")).json()["voices"]
        ids = [voice["id"] for voice in voices]
        assert ids[:2] == ["heart", "bella"]
        assert set(OPENAI_VOICES) <= set(ids)
        assert len(OPENAI_VOICES) == 13
        assert all(voice["name"] == voice["id"] for voice in voices)
        for id in ids:
            assert (await server.post(SAY, {"input": "a", "voice": id})).status_code == 200
        assert {request.params["speech"].voice for request in server.orchestrator.requests} == {"heart", "bella"}


CLONER = replace(
    PIPELINE,
    stages=tuple(
        replace(
            stage,
            ports=(*stage.ports, Port("reference", "pcm", required=False)),
            options={**stage.options, "max_characters": Option(4096), "max_reference_s": Option(30.0)},
            input_limits={"text": "max_characters", "audio": "max_reference_s"},
        )
        if stage.name == "acoustic"
        else stage
        for stage in PIPELINE.stages
    ),
    tasks=(Task("speech", {"text": "acoustic", "audio": "acoustic.reference"}, {"audio": "vocoder"}),),
    task_types=("custom_voice", "voice_design", "clone"),
    speech_fields=(
        "instructions",
        "language",
        "ref_text",
        "x_vector_only",
        "max_tokens",
        "initial_chunk_frames",
        "top_k",
    ),
    voices=("Vivian", "Eric"),
)
"""A model that speaks by name, by description, and after a clip."""

CLIP = base64.b64encode(wav(tone(0.5, 48_000), 48_000)).decode()


@pytest.mark.parametrize("clip", [CLIP, f"data:audio/wav;base64,{CLIP}"])
async def test_a_voice_is_cloned_from_a_clip(clip: str) -> None:
    async with served(pipeline=CLONER) as server:
        body = {"input": "Hello.", "ref_audio": clip, "ref_text": "What was said."}
        assert (await server.post(SAY, body)).status_code == 200
        (request,) = server.orchestrator.requests
        assert request.inputs == ("text", "audio")
        assert [ref.seconds for ref in request.media] == [0.5]
        speech = request.params["speech"]
        assert (speech.task_type, speech.reference, speech.ref_text) == ("clone", True, "What was said.")
        await server.settled()


async def test_a_large_clip_is_read_in_the_media_process() -> None:
    large = base64.b64encode(wav(tone(20.0, 48_000), 48_000)).decode()
    assert len(large) > 1 << 20
    async with served(pipeline=CLONER) as server:
        body = {"ref_audio": large, "x_vector_only_mode": True, "input": "Hello."}
        assert (await server.post(SAY, body)).status_code == 200
        (request,) = server.orchestrator.requests
        assert request.media[0].seconds == 20.0
        assert request.params["speech"].x_vector_only
        await server.settled()


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ({}, {"task_type": "custom_voice", "voice": "Vivian"}),
        ({"voice": "eric"}, {"voice": "Eric"}),
        ({"speaker": "Eric"}, {"voice": "Eric"}),
        ({"voice": "alloy", "speaker": "vivian"}, {"voice": "Vivian"}),
        ({"task_type": "VoiceDesign", "instructions": "old"}, {"task_type": "voice_design", "instructions": "old"}),
        ({"language": "English"}, {"language": "en"}),
        ({"max_new_tokens": 7, "initial_codec_chunk_frames": 3, "top_k": 5, "seed": 9}, {"max_tokens": 7, "seed": 9}),
        ({"initial_codec_chunk_frames": 3, "top_k": 5}, {"initial_chunk_frames": 3, "top_k": 5}),
        ({"speed": 1.0, "x_vector_only_mode": False, "instructions": ""}, {"speed": 1.0, "instructions": None}),
        ({"initial_codec_chunk_frames": 0}, {"initial_chunk_frames": None}),
    ],
)
async def test_how_a_voice_is_chosen(field: dict[str, Any], found: dict[str, Any]) -> None:
    async with served(pipeline=CLONER) as server:
        assert (await server.post(SAY, {"input": "Hello.", **field})).status_code == 200
        speech = server.orchestrator.requests[0].params["speech"]
        assert {name: getattr(speech, name) for name in found} == found


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"speed": 1.5}, "speed"),
        ({"temperature": 0.5}, "temperature"),
        ({"task_type": "Singing"}, "task_type"),
        ({"task_type": "VoiceDesign"}, "instructions"),
        ({"task_type": "Base"}, "ref_audio"),
        ({"ref_text": "What was said."}, "ref_audio"),
        ({"x_vector_only_mode": True}, "ref_audio"),
        ({"ref_audio": CLIP}, "ref_text"),
        ({"ref_audio": CLIP, "ref_text": "x", "task_type": "CustomVoice"}, "ref_audio"),
        ({"ref_audio": "####", "ref_text": "x"}, "ref_audio"),
        ({"ref_audio": {"type": "audio", "index": 0}, "ref_text": "x"}, "ref_audio"),
        ({"ref_audio": [CLIP], "ref_text": "x"}, "ref_audio"),
        ({"voice": "Vivian", "speaker": "Eric"}, "speaker"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"word_timestamps": True}, "word_timestamps"),
        ({"extra_params": {"top_k": 1}}, "extra_params"),
    ],
)
async def test_ways_of_speaking_that_are_refused(field: dict[str, Any], param: str) -> None:
    async with served(pipeline=CLONER) as server:
        assert error_of(await server.post(SAY, {"input": "Hello.", **field}), 400)["param"] == param
        assert not server.orchestrator.requests
        await server.settled()


@pytest.mark.parametrize(
    ("field", "param"),
    [({"ref_audio": CLIP}, "ref_audio"), ({"task_type": "CustomVoice"}, "task_type"), ({"ref_text": "x"}, "ref_audio")],
)
async def test_a_model_with_its_own_voices_only_clones_none(field: dict[str, Any], param: str) -> None:
    async with served() as server:
        assert error_of(await server.post(SAY, {"input": "Hello.", **field}), 400)["param"] == param
        await server.settled()


@pytest.mark.parametrize("large", [False, True])
async def test_a_clip_that_the_model_finds_too_long_is_not_decoded(large: bool) -> None:
    """The stage's own bound (30 s) is known here; the media process would take an hour."""
    rate = 48_000 if large else 4_000
    clip = base64.b64encode(wav(tone(31.0, rate), rate)).decode()
    async with served(pipeline=CLONER) as server:
        body = {"input": "Hello.", "x_vector_only_mode": True, "ref_audio": clip}
        error = error_of(await server.post(SAY, body), 400)
        assert (error["param"], error["code"]) == ("ref_audio", "audio_too_long")
        assert "longer than 30 s" in error["message"]
        assert server.harness.engine.counters()["decoded_s"] == 0
        assert not server.orchestrator.requests
        await server.settled()


@pytest.mark.parametrize("field", ["voice", "speaker"])
@pytest.mark.parametrize("name", ["alloy", "nobody", "", {"id": "nobody"}])
async def test_with_a_clip_any_voice_may_be_named(field: str, name: Any) -> None:
    """The clip decides; SDKs cannot leave the field out."""
    if field == "speaker" and not isinstance(name, str):
        return
    async with served(pipeline=CLONER) as server:
        body = {"input": "Hello.", "x_vector_only_mode": True, "ref_audio": CLIP, field: name}
        assert (await server.post(SAY, body)).status_code == 200
        assert server.orchestrator.requests[0].params["speech"].voice == "Vivian"
        assert error_of(await server.post(SAY, {"input": "Hello.", field: "nobody"}), 400)["param"] == field
        await server.settled()


@pytest.mark.parametrize("url", ["ftp://example.org/a.wav", "file:///etc/passwd", "s3://bucket/a.wav", "HTTPX://x/"])
async def test_a_clip_by_another_scheme_is_called_that(url: str) -> None:
    async with served(pipeline=CLONER) as server:
        body = {"input": "Hello.", "x_vector_only_mode": True, "ref_audio": url}
        error = error_of(await server.post(SAY, body), 400)
        assert (error["param"], error["code"]) == ("ref_audio", "invalid_url")
        assert "'data:', 'https:' or 'http:'" in error["message"]
    async with served() as server:
        audio = {"data": url, "format": "wav"}
        error = error_of(await server.post("/v1/chat/completions", spoken(audio)), 400)
        assert (error["param"], error["code"]) == ("messages[0].content[0].input_audio.data", "invalid_url")
        error = error_of(await server.post(HEAR, {"input_audio": audio}), 400)
        assert (error["param"], error["code"]) == ("input_audio.data", "invalid_url")


def spoken(audio: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}]}


@pytest.mark.parametrize("language", ["", " ", "auto", "\n"])
async def test_a_blank_language_counts_as_none(language: str) -> None:
    async with served(pipeline=CLONER) as server:
        assert (await server.post(SAY, {"input": "Hello.", "language": language})).status_code == 200
        assert server.orchestrator.requests[0].params["speech"].language is None
    async with served() as server:
        chat = {"messages": [{"role": "user", "content": "hi"}], "language": language}
        spoken = await server.post("/v1/chat/completions", {**chat, "modalities": ["text", "audio"]})
        assert spoken.status_code == 200
        written = await server.post("/v1/chat/completions", chat)
        assert (written.status_code == 200) == (language != "auto")  # that is a wish, which needs speech


@pytest.mark.parametrize("clip", [{}, {"ref_audio": CLIP, "x_vector_only_mode": True}])
@pytest.mark.parametrize("embedding", [[], [0.5] * 8, "", {}])
async def test_a_speaker_embedding_is_refused_full_or_empty(embedding: Any, clip: dict[str, Any]) -> None:
    async with served(pipeline=CLONER) as server:
        error = error_of(await server.post(SAY, {"input": "Hello.", "speaker_embedding": embedding, **clip}), 400)
        assert (error["param"], error["code"]) == ("speaker_embedding", "unsupported_parameter")
        assert "ref_audio" in error["message"]
        await server.settled()


# --- transcription ---------------------------------------------------------------------------------------------------


async def test_json_bodies() -> None:
    async with served() as server:
        audio = {"data": base64.b64encode(wav(SPEECH)).decode(), "format": "wav"}
        response = await server.post(HEAR, {"model": "assistant", "input_audio": audio, "language": "en"})
        assert response.json()["text"] == TEXT
        assert error_of(await server.post(HEAR, {"model": "assistant"}), 400)["param"] == "input_audio"
        bad = {"model": "assistant", "input_audio": {"data": "####", "format": "wav"}}
        assert error_of(await server.post(HEAR, bad), 400)["param"] == "input_audio.data"
        await server.settled()


@pytest.mark.parametrize(
    ("format", "codec", "name", "type"),
    [
        ("webm", "libopus", "blob", "audio/webm;codecs=opus"),
        ("webm", "libopus", "recording.wav", ""),
        ("ogg", "libopus", "a.ogg", "audio/ogg"),
        ("mp3", "libmp3lame", "a", "application/octet-stream"),
        ("ipod", "aac", "a.m4a", "audio/x-m4a"),
    ],
)
async def test_what_a_browser_uploads(format: str, codec: str, name: str, type: str) -> None:
    """The bytes say what it is; names and types may be wrong or missing."""
    data = container(format, codec, tone(1.0, 48_000))
    async with served() as server:
        response = await server.client.post(HEAR, files={"file": (name, data, type)}, data={"model": "assistant"})
        assert response.status_code == 200, response.text
        assert abs(server.orchestrator.requests[0].media[0].seconds - 1.0) < 0.1
        await server.settled()


async def test_the_order_of_a_forms_parts_does_not_matter() -> None:
    """Also cut into pieces of a few bytes, and with a file part that names no file."""
    edge = "XyZ"
    parts = [
        b'Content-Disposition: form-data; name="file"\r\n\r\n' + wav(SPEECH),
        b'Content-Disposition: form-data; name="model"\r\n\r\nassistant',
        b'Content-Disposition: form-data; name="language"\r\n\r\nde',
    ]
    async with served() as server:
        for order in (parts, parts[::-1]):
            body = b"".join(f"--{edge}\r\n".encode() + part + b"\r\n" for part in order) + f"--{edge}--\r\n".encode()

            async def pieces(body: bytes = body) -> Any:
                for at in range(0, len(body), 1999):
                    yield body[at : at + 1999]

            headers = {"Content-Type": f"multipart/form-data; boundary={edge}"}
            response = await server.client.post(HEAR, content=pieces(), headers=headers)
            assert response.json()["text"] == TEXT
        assert all(request.params["transcription"].language == "de" for request in server.orchestrator.requests)
        assert all(request.media[0].seconds == 0.5 for request in server.orchestrator.requests)
        await server.settled()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mood": "x"}, "mood"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "1.5"}, "temperature"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"language": "xx"}, "language"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "syllable", "response_format": "verbose_json"}, "timestamp_granularities[0]"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"include[]": "logprobs"}, "include"),
        ({"known_speaker_names[]": "ann"}, "known_speaker_names"),
        ({"keywords[]": "omni"}, "keywords"),
    ],
)
async def test_transcription_fields_that_are_refused(fields: dict[str, str], param: str) -> None:
    async with served() as server:
        assert error_of(await hear(server, wav(SPEECH), **fields), 400)["param"] == param
        assert not server.orchestrator.requests
        await server.settled()


FILE: Any = ("file", ("a.wav", wav(SPEECH)))

LANGUAGES = {
    "": None,
    " ": None,
    "auto": None,
    "EN": "en",
    "de-AT": "de",
    "de_CH": "de",
    "english": "en",
    "German": "de",
}


@pytest.mark.parametrize("path", [HEAR, "/v1/audio/translations"])
async def test_a_language_is_a_code_a_name_or_the_models_choice(path: str) -> None:
    """In forms and in JSON alike."""
    audio = {"data": base64.b64encode(wav(SPEECH)).decode(), "format": "wav"}
    async with served() as server:
        for language in LANGUAGES:
            form = await server.client.post(path, data={"language": language}, files={"file": ("a.wav", wav(SPEECH))})
            json = await server.post(path, {"input_audio": audio, "language": language})
            assert (form.status_code, json.status_code) == (200, 200), (language, form.text, json.text)
        asked = [request.params["transcription"].language for request in server.orchestrator.requests]
        assert asked == [code for code in LANGUAGES.values() for _ in range(2)]
        unknown = await server.client.post(path, data={"language": "xx"}, files={"file": ("a.wav", wav(SPEECH))})
        assert "en, de" in error_of(unknown, 400)["message"]


async def test_fields_of_a_form_that_are_empty_or_listed_without_brackets() -> None:
    empty = dict.fromkeys(("model", "language", "prompt", "temperature", "response_format", "stream", "timeout"), "")
    form: list[tuple[str, str]] = [*empty.items(), ("chunking_strategy", ""), ("include[]", ""), ("keywords", "")]
    verbose = {"response_format": "verbose_json", "timestamp_granularities": "segment"}
    async with served() as server:
        answers = [
            await server.client.post(HEAR, files=[*((name, (None, it)) for name, it in fields), FILE])
            for fields in (
                form,
                [*verbose.items()],
                [*verbose.items(), ("timestamp_granularities", "word")],
                [*verbose.items(), ("timestamp_granularities[]", "word")],
            )
        ]
        assert [it.status_code for it in answers] == [200] * 4, [it.text for it in answers]
        assert answers[0].json()["text"] == TEXT
        asked = [request.params["transcription"] for request in server.orchestrator.requests]
        assert [it.timestamps for it in asked] == ["none", "segment", "word", "word"]
        for name in ("include", "include[]"):
            fields = [(name, (None, "logprobs")), (name, (None, "more")), FILE]
            assert error_of(await server.client.post(HEAR, files=fields), 400)["param"] == "include"
        twice = [("prompt", (None, "a")), ("prompt", (None, "b")), FILE]
        assert error_of(await server.client.post(HEAR, files=twice), 400)["param"] == "prompt"
        await server.settled()


@pytest.mark.parametrize(
    "data",
    [b"", b"not a sound", wav(b""), wav(SPEECH)[:30], silent_video(3)],
    ids=["empty", "text", "no", "cut", "mp4"],
)
async def test_what_is_no_sound_is_a_mistake(data: bytes) -> None:
    async with served() as server:
        assert error_of(await hear(server, data), 400)["param"] == "file"
        await server.settled()


async def test_forms_that_are_wrong() -> None:
    async with served() as server:
        no_file = await server.client.post(HEAR, files={"model": (None, "assistant")})
        assert error_of(no_file, 400)["param"] == "file"
        two = [("file", ("a", wav(SPEECH))), ("file", ("b", wav(SPEECH)))]
        assert error_of(await server.client.post(HEAR, files=two), 400)["param"] == "file"
        elsewhere = await server.client.post(HEAR, files={"sound": ("a", wav(SPEECH))})
        assert error_of(elsewhere, 400)["param"] == "sound"
        for type in ("multipart/form-data", "multipart/form-data; boundary=x", "text/plain"):
            response = await server.client.post(HEAR, content=b"--y\r\n\r\nx", headers={"Content-Type": type})
            error_of(response, 400)
        nameless = b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n"
        for type in ("multipart/form-data; boundary=x", "multipart/form-data; boundary*=utf-8''%E2%82%AC"):
            error_of(await server.client.post(HEAR, content=nameless, headers={"Content-Type": type}), 400)
        error_of(await hear(server, wav(SPEECH), model="whisper-1"), 404)
        await server.settled()


async def test_words_and_segments_on_request() -> None:
    async with served() as server:
        form = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
        verbose = (await hear(server, wav(SPEECH), **form)).json()
        assert "segments" not in verbose
        assert verbose["words"] == [{"word": "Paris", "start": 0.0, "end": 0.4}]
        assert server.orchestrator.requests[0].params["transcription"].timestamps == "word"


async def test_a_streamed_transcription_comes_as_it_is_made() -> None:
    script: list[Step] = [TextDelta(0, 0, " One", []), TextDelta(0, 0, " two", [], "stop"), Completed({})]
    async with served(lambda request: list(script)) as server:
        response = await hear(server, wav(SPEECH), stream="true")
        events = events_of(response.text)
        assert [event.get("delta") for event in events] == ["One", " two", None]
        assert events[-1]["text"] == "One two"
        whole = await hear(server, wav(SPEECH))
        assert json.loads(whole.text)["text"] == "One two"
