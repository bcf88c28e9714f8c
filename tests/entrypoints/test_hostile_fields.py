"""Whatever a field holds: an answer, or a 4xx that says what is wrong. Never a 500, never a worker less.

Every field of every body gets every hostile value, over HTTP against real stages (tiny checkpoints): what the schema
lets pass meets the adapters, the engines and the sampler.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.demo.server import Server, serving
from tests.entrypoints.test_media import data_url
from tests.media.harness import tone, wav
from tests.media.pictures import noise, png, video

from omni_actors.entrypoints.openai.fields import NoOp, Refused, marks
from omni_actors.entrypoints.openai.schemas import ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest

pytestmark = [pytest.mark.slow, pytest.mark.deadline(300)]

CHAT, COMPLETE, SAY, HEAR = "/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/v1/audio/transcriptions"

NUMBERS = [
    *("-1", "0", "1", "0.5", "-0.0", "1e-320", "1e308", "-1e308", "1e400", "NaN", "Infinity"),
    *("2147483647", "9007199254740992", "9223372036854775807", "-9223372036854775808", "18446744073709551616"),
    "99999999999999999999999999",
]
TEXTS = [
    *('""', r'" \t\n"', r'"\u0000"', r'"\ud800"', '"../../etc/passwd"', '"file:///etc/passwd"', '"%s%n{0}$(id)"'),
    json.dumps("\N{ROBOT FACE}" * 3000),
    json.dumps("a" * 70_000),
]
OTHERS = [
    *("true", "null", "[]", "{}", "[null]", "[[]]", "[-1]", "[1,2]", "[2147483647]", '[""]', r'["\u0000"]', '["a"]'),
    *('{"a":1}', '{"-1":1}', '{"2147483647":1}', '{"1":1e300}', '{"1":100}', '{"1":null}', '{"1":-100,"2":-100}'),
    "[" * 500 + "]" * 500,
    json.dumps([0] * 5000),
    json.dumps(["x" * 200] * 100),
]
HOSTILE = NUMBERS + TEXTS + OTHERS

_CHAT = '{"messages":[{"role":"user","content":"a"}]'

PLACES = {
    "a content": '{"messages":[{"role":"user","content":%s}]}',
    "a role": '{"messages":[{"role":%s,"content":"x"}]}',
    "a text": '{"messages":[{"role":"user","content":[{"type":"text","text":%s}]}]}',
    "a type": '{"messages":[{"role":"user","content":[{"type":%s,"text":"x"}]}]}',
    "an image": '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%s}}]}]}',
    "a clip": '{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":%s}}]}]}',
    "an index": '{"messages":[{"role":"user","content":[{"type":"audio","index":%s}]}]}',
    "an answer": '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":%s}]}',
    "an id": '{"messages":[{"role":"user","content":"a"},{"role":"assistant","audio":{"id":%s}}]}',
    "a voice": _CHAT + ',"modalities":["text","audio"],"audio":{"voice":%s}}',
    "a voice's id": _CHAT + ',"modalities":["audio"],"audio":{"voice":{"id":%s}}}',
    "a stream's option": _CHAT + ',"stream":true,"stream_options":{"include_usage":%s}}',
    "a template's variable": _CHAT + ',"chat_template_kwargs":{"tools":%s,"bos_token":%s}}',
}


@dataclass(frozen=True)
class Ask:
    what: str
    path: str
    body: bytes
    type: str = "application/json"


def each_field(path: str, kind: type[msgspec.Struct], base: dict[str, Any]) -> Iterator[Ask]:
    unserved = marks(kind, Refused).keys() | marks(kind, NoOp).keys()
    for name in kind.__struct_encode_fields__:
        for value in HOSTILE if name not in unserved else ("[[]]", "1e308"):
            fields = {key: json.dumps(it) for key, it in base.items()} | {name: value}
            body = ",".join(f'"{key}":{it}' for key, it in fields.items())
            yield Ask(f"{name} = {value[:60]}", path, f"{{{body}}}".encode())


def each_place() -> Iterator[Ask]:
    for what, template in PLACES.items():
        for value in HOSTILE:
            body = template.replace("%s", value)[:-1] + ',"max_tokens":2}'
            yield Ask(f"{what} = {value[:60]}", CHAT, body.encode())


def each_form_field(base: dict[str, str]) -> Iterator[Ask]:
    def part(head: str, data: bytes) -> bytes:
        return f"--B\r\ncontent-disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"

    clip = part('name="file"; filename="a.wav"', wav(tone(0.5, 16_000), 16_000))
    for name in TranscriptionRequest.__struct_encode_fields__:
        for value in HOSTILE:
            fields = base | {name: value.strip('"')}
            body = clip + b"".join(part(f'name="{key}"', it.encode()) for key, it in fields.items()) + b"--B--\r\n"
            yield Ask(f"{name} = {value[:60]}", HEAR, body, "multipart/form-data; boundary=B")


def each_medium() -> Iterator[Ask]:
    """Media that are well-formed and no model was made for."""

    def of(kind: str, type: str, data: bytes) -> dict[str, Any]:
        return {"type": kind, kind: {"url": data_url(data, type)}}

    shapes = [(1, 1), (1, 2), (1, 199), (1, 201), (3000, 1), (27, 27), (29, 31), (2000, 10)]
    media = {f"an image of {h} x {w}": [of("image_url", "image/png", png(noise(h, w)))] for h, w in shapes}
    media |= {
        f"a clip of {n} samples": [of("audio_url", "audio/wav", wav(b"\1\2" * n, 16_000))]
        for n in (1, 159, 160, 399, 400, 401, 16_000 * 31)
    }
    media |= {f"a video of {n} frames": [of("video_url", "video/mp4", video(n, 10))] for n in (1, 2, 3, 5)}
    media["a video with little sound"] = [of("video_url", "video/mp4", video(1, 10, sound_hz=440.0))]
    media["of everything the least"] = [part[0] for name, part in media.items() if " 1 " in f"{name} "]
    for what, parts in media.items():
        for more in ({}, {"use_audio_in_video": True}, {"modalities": ["text", "audio"], "audio": {"format": "wav"}}):
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 2, **more}
            yield Ask(f"{what}, {more}", CHAT, json.dumps(body).encode())


def ask_all(server: Server, asks: list[Ask], connections: int = 8) -> list[str]:
    """Ask all of it; what was wrong with the answers."""
    waiting: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
    for ask in asks:
        waiting.put(ask)
    wrong: list[str] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while (ask := waiting.get()) is not None:
            try:
                connection.request("POST", ask.path, ask.body, {"content-type": ask.type})
                response = connection.getresponse()
                fault = judge(response.status, response.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                fault = repr(error)
            if fault:
                wrong.append(f"{ask.path}: {ask.what}: {fault}")
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(connections)]
    for thread in threads:
        waiting.put(None)
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def judge(status: int, body: bytes) -> str:
    if status == 200:
        return "" if b'"error":' not in body[-400:] else f"an error in the stream: {body[-400:]!r}"
    if status not in (400, 404, 408, 413):
        return f"{status} {body[:300]!r}"
    error = json.loads(body)["error"]
    if not error["message"] or "Traceback" in error["message"]:
        return f"{status} {error}"
    malformed = "not valid JSON" in error["message"] or "nested too deeply" in error["message"]
    if status == 400 and error["param"] is None and not malformed:
        return f"names no field: {error}"
    return ""


def check(server: Server, asks: list[Ask], good: tuple[str, dict[str, Any]]) -> None:
    workers = server.workers()
    wrong = ask_all(server, asks)
    assert not wrong, f"{len(wrong)} of {len(asks)}:\n" + "\n".join(wrong[:20])
    assert server.post(*good)[0] == 200
    assert server.healthy()
    assert server.workers() == workers, "a worker ended"
    log = server.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


@pytest.fixture(scope="module")
def omni(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = ("--set", "stages.talker.options.max_tokens=4", "--set", "stages.thinker.options.max_tokens=4")
    with serving(tmp_path_factory.mktemp("omni"), str(tiny_model("qwen3-omni")), *limits) as server:
        yield server


def test_an_omni_model(omni: Server) -> None:
    asks = [
        *each_field(CHAT, ChatRequest, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        *each_field(COMPLETE, CompletionRequest, {"prompt": "hi", "max_tokens": 2}),
        *each_field(SAY, SpeechRequest, {"input": "hi", "max_new_tokens": 3}),
        *each_place(),
        *each_medium(),
    ]
    check(omni, asks, (CHAT, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}))


def test_a_model_that_clones_voices(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    clip = {"ref_audio": data_url(wav(tone(1.2)), "audio/wav"), "ref_text": "hi"}
    asks = list(each_field(SAY, SpeechRequest, {"input": "hi", **clip, "max_new_tokens": 3}))
    with serving(tmp_path, str(tiny_model("qwen3-tts-base"))) as server:
        check(server, asks, (SAY, {"input": "hi", **clip, "max_new_tokens": 3}))


def test_a_model_that_listens(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    limits = ("--set", "stages.listener.options.max_tokens=4", "--set", "stages.listener.options.max_model_len=2048")
    with serving(tmp_path, str(tiny_model("qwen3-asr")), *limits) as server:
        clip = {"data": data_url(wav(tone(0.5)), "audio/wav").split(",")[1], "format": "wav"}
        check(server, list(each_form_field({})), (HEAR, {"input_audio": clip}))


LIMITS: list[tuple[str, dict[str, Any], str, str | None]] = [
    (CHAT, {"messages": [{"role": "user", "content": "x " * 40_000}]}, "messages", "context_length_exceeded"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2**53},
        "messages",
        "context_length_exceeded",
    ),
    (COMPLETE, {"prompt": "x " * 40_000}, "prompt", "context_length_exceeded"),
    (COMPLETE, {"prompt": ""}, "prompt", None),
    (COMPLETE, {"prompt": []}, "prompt", None),
    (COMPLETE, {"prompt": [[]]}, "prompt[0]", None),
    (COMPLETE, {"prompt": [2**31 - 1]}, "prompt", None),
    (COMPLETE, {"prompt": ["a"] * 2000}, "prompt", None),
    (COMPLETE, {"prompt": "a", "logit_bias": {"100000": 1}}, "logit_bias", None),
    (COMPLETE, {"prompt": "a", "stop_token_ids": [100_000]}, "stop_token_ids", None),
    (COMPLETE, {"prompt": "a", "seed": 2**64}, "seed", "invalid_value"),
    (COMPLETE, {"prompt": "a", "min_tokens": 3, "max_tokens": 2}, "min_tokens", None),
    (SAY, {"input": "hi", "voice": "../../x"}, "voice", None),
    (SAY, {"input": "hi", "voice": "x\0y"}, "voice", None),
]


def test_limits_are_named(omni: Server) -> None:
    for path, body, param, code in LIMITS:
        status, answer = omni.post(path, {"max_tokens": 2, **body} if path != SAY else body)
        assert status in (400, 404), (body, answer)
        assert answer["error"]["param"] == param, answer
        assert code is None or answer["error"]["code"] == code, answer
    extreme: dict[str, Any] = {"prompt": "a", "max_tokens": 4, "n": 4, "logprobs": 20, "echo": True}
    extreme |= {"temperature": 2, "top_p": 1e-300, "min_p": 1, "top_k": 1, "seed": -(2**63), "stop": ["a"] * 16}
    extreme |= {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 0.01}
    extreme |= {"logit_bias": {str(i): -100 for i in range(700)}}
    for change in ({}, {"temperature": 1e-300}, {"temperature": 1e-5}, {"repetition_penalty": 100}, {"min_p": 0}):
        assert omni.post(COMPLETE, extreme | change)[0] == 200
    assert "Traceback" not in omni.log.read_text()
