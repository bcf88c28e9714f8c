"""What clients write into bodies: JSON, forms, base64; and the event streams that go back."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import msgspec
import trio
from tests.fuzz.target import Target, chance, cuts, plain

from omni_actors.entrypoints.bench.sse import EventParser
from omni_actors.entrypoints.history import SpokenHistory
from omni_actors.entrypoints.openai import sse
from omni_actors.entrypoints.openai.errors import error_body
from omni_actors.entrypoints.openai.fields import convert, decode
from omni_actors.entrypoints.openai.forms import read_files
from omni_actors.entrypoints.openai.messages import prompt_messages
from omni_actors.entrypoints.openai.schemas import ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest
from omni_actors.entrypoints.tts_input import check_tts_input
from omni_actors.media.limits import Limits
from omni_actors.media.worker import bodies
from omni_actors.protocol.errors import OmniError


class refusing(contextlib.AbstractContextManager[None]):
    """A client's mistake is one (4xx), and can be told."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, OmniError):
            return False
        assert 400 <= error.info.status < 500, error.info
        assert json.loads(error_body(error.info))["error"]["message"]
        return True


_BODIES = (ChatRequest, CompletionRequest, SpeechRequest, TranscriptionRequest)


def _json(data: bytes) -> None:
    """The first byte chooses the route."""
    kind: Any = _BODIES[(data[0] if data else 0) % len(_BODIES)]
    with refusing():
        body = decode(data[1:], kind)
        if isinstance(body, ChatRequest):
            prompt_messages(body.messages, (), SpokenHistory(1.0))
        elif isinstance(body, SpeechRequest):
            check_tts_input(body.input)


def _json_seeds() -> list[bytes]:
    chat = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "x"}]},
            {"role": "user", "content": "hé\ud83d\ude00"},
            {"role": "assistant", "content": None, "audio": {"id": "a"}},
            {"role": "tool"},
        ],
        "stream_options": {"include_usage": True},
        "stop": ["a"],
        "logit_bias": {"1": -1.5},
        "seed": -1,
        "tools": [],
        "mm_processor_kwargs": {"fps": 1},
    }
    speech = {"input": "x", "voice": {"id": "v"}, "speed": 1.0, "ref_audio": "AAAA", "seed": 1}
    completion = {"prompt": ["a", [1, 2]], "logprobs": 1, "best_of": 1}
    transcription = {"model": "m", "temperature": 0, "timestamp_granularities": ["word"], "include": []}
    whole = (chat, completion, speech, transcription)
    return [bytes([kind]) + json.dumps(it).encode() for kind, it in enumerate(whole)]


_MEDIA = Limits(max_json_bytes=1 << 16, max_clips_per_body=4)


def _chat_body(data: bytes) -> None:
    """What the media process makes of a body. One without media comes back as it was; all strings but the very shortest
    take the way of long ones."""
    with mock.patch.object(bodies, "LONG", 8), refusing():
        found = bodies.ChatBody(data, _MEDIA, clip=(None, "input_audio", "ref_audio")[chance(data).randrange(3)])
        for part in found.parts:
            taken: list[bytes] = []
            with refusing():
                for _ in bodies.decode_base64(part.text, taken.append, part.param):
                    pass
        made = found.render()
        if not found.parts:
            # Of two values under one name the last counts, and nobody looks at the letters of a long one before it:
            # what was malformed for them alone is so no more.
            assert _value(data) in (_value(made), "malformed")
        with refusing():
            body = decode(made, ChatRequest)
            prompt_messages(body.messages, tuple(it.modality for it in found.parts), SpokenHistory(1.0))


def _value(data: bytes) -> Any:
    """What JSON means, if it is any: the long strings are only looked at by who decodes the rest."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "malformed"


def _chat_seeds() -> list[bytes]:
    clip = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
    video = {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}}
    content = [clip, image, video, {"type": "text", "text": 'a long text with \\ and "quotes" in it'}]
    body = {"messages": [{"role": "user", "content": content}], "timeout": 1.5, "mm_processor_kwargs": {"fps": 1.0}}
    return [
        json.dumps(body).encode(),
        json.dumps(body).replace("/", "\\/").encode(),
        json.dumps({"input_audio": clip["input_audio"]}).encode(),
        json.dumps({"input": "x", "ref_audio": "data:audio/wav;base64,UklGRgAAAABXQVZF"}).encode(),
        b'{"messages": [{"role": "user", "content": "without any media, and long enough"}], "a": "\\\\\\"x, y"}',
        b'{"a": {"format": "wav\xe4\xa5\x94\x93, said twice", "format": "wav"}}',
    ]


def _form(data: bytes) -> None:
    """A form, in pieces; the boundary is ``b``, or what the first byte says is in the content type."""
    kind = b"multipart/form-data; boundary=b"
    if data[:1] == b"\xff":
        size = 1 + (data[1] % 64 if len(data) > 1 else 0)
        kind, data = data[2 : 2 + size], data[2 + size :]

    async def main(pieces: list[bytes]) -> tuple[Any, Any]:
        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        async def take(field: str, file: AsyncIterator[bytes], filename: str | None, type_: str | None) -> bytes:
            return b"".join([piece async for piece in file])

        return await read_files(body(), kind.decode("latin-1"), {"file": 1, "image": 2}, take)

    results: list[tuple[Any, Any] | None] = []
    for pieces in ([data] if data else [], cuts(data)):
        results.append(None)
        with refusing():
            results[-1] = trio.run(main, pieces)
    if None not in results:  # a part without a line break before the next boundary is only sometimes seen to be wrong
        assert results[0] == results[1], "another cut, another form"
    if results[0] is not None:
        with refusing():
            convert(results[0][0], TranscriptionRequest)


def _form_seeds() -> list[bytes]:
    def part(name: str, value: bytes, more: str = "") -> bytes:
        return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"

    whole = (
        part("model", b"m") + part("file", bytes(40), '; filename="a.wav"\r\nContent-Type: audio/wav') + b"--b--\r\n"
    )
    lists = part("timestamp_granularities[]", b"word") * 2 + part("temperature", b"0.5") + b"--b--"
    image = part("image[]", bytes(20), '; filename="a.png"')
    images = image + part("image", b"text") + image + b"--b--\r\n"
    return [whole, lists, images, b"preamble\r\n" + whole, b"\xff\x20multipart/form-data; boundary=b" + whole]


def _events(data: bytes) -> None:
    """Our reader of event streams gives the same for any cut. What we write is read as it was meant."""
    parser, whole = EventParser(), EventParser()
    found = [event for piece in cuts(data) for event in parser.feed(piece)]
    assert found == whole.feed(data), "another cut, other events"
    assert parser.unfinished == whole.unfinished
    text = data.decode(errors="replace")
    template = sse.Template(text[:20], "chunk", 1, text, usage=chance(data).random() < 0.5)
    choice = json.dumps({"index": 0, "text": text}).encode()
    (event,) = EventParser().feed(template.chunk(choice))
    assert json.loads(event)["choices"][0]["text"] == text
    (event,) = EventParser().feed(template.around(b'{"index":0,"text":%b}') % sse.encode(text))
    assert json.loads(event) == {**json.loads(event), "model": text, "choices": [{"index": 0, "text": text}]}
    encoder = sse.Base64(chance(data).choice((1, 2, 4)))
    coded = [encoder.feed(piece) for piece in cuts(data)]
    assert base64.b64decode(b"".join([*coded, encoder.finish()])) == data


_JSON = (b'{"', b'"}', b"[]", b"null", b"1e400", b"-0", b"\\ud800", b"\\u0000", b'\\"', b"\xff", b"9" * 30, b"[" * 60)
_PARTS = (
    b'"type":"image_url"',
    b'"type":"audio"',
    b'"index":0',
    b";base64,",
    b"data:",
    b"\\/",
    b"\\u002b",
    b"=",
    b"\\r\\n",
)
_FORM = (
    b"\r\n--b",
    b"--b--",
    b"\r\n\r\n",
    b'name="file"',
    b'name="image[]"',
    b'name=""',
    b"filename*=utf-8''a",
    b"; boundary=",
    b"[]",
)

TARGETS = (
    Target("json", "OmniError below 500", plain(_json), _json_seeds, _JSON),
    Target("chat-body", "OmniError below 500", plain(_chat_body), _chat_seeds, _JSON + _PARTS),
    Target("form", "OmniError below 500", plain(_form), _form_seeds, _FORM),
    Target(
        "events",
        "nothing",
        plain(_events),
        lambda: [b"data: a\r\n\r\ndata: b\ndata: c\n\n: x\n\r\r", b'{"%b": "%"}'],
        (b"data:", b"\r", b"\r\n", b"\n\n", b"%", b"%b", b'"', b"\xe2\x80\xa8"),
    ),
)
