"""Chats with images, audio and video: parts of every kind, by data and by URL, and what of them is refused."""

from __future__ import annotations

import base64
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
from PIL import Image
from tests.entrypoints.fakes import PIPELINE, SPEECH, TEXT, TEXT_ONLY, Server, answer, message, served
from tests.entrypoints.sdk import blocking
from tests.entrypoints.test_middleware import error_of
from tests.media.harness import wav
from tests.media.pictures import encoded, huge_png, noise, png, video
from tests.media.web import moved, ok, web
from tests.pipelines.builders import may, stage

from omni_actors.pipelines.declaration import Edge, Pipeline, Task
from omni_actors.protocol.params import Prompt
from omni_actors.protocol.request import Request

CHAT = "/v1/chat/completions"
PIXELS = noise(30, 40)
PNG = png(PIXELS)
CLIP = wav(SPEECH)
MOVIE = video(20, 10, sound_hz=440.0)

OMNI = Pipeline(
    name="assistant",
    stages=(
        stage("encoder", may("media", "media")),
        replace(stage("llm", may("features", "features"), emits="text"), sections=("prompt", "sampling")),
    ),
    edges=(Edge("encoder", "llm.features", "features"),),
    tasks=(
        Task("chat", {"text": "llm", **dict.fromkeys(("audio", "image", "video"), "encoder.media")}, {"text": "llm"}),
    ),
)


def omni(*overrides: str) -> AbstractAsyncContextManager[Server]:
    return served(answer, *overrides, pipeline=OMNI)


LOCAL = 'stages.media.options.allowed_hosts=["127.0.0.1"]'


def data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url or data_url(PNG, "image/png"), **more}}


def movie(url: str | None = None) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url or data_url(MOVIE, "video/mp4")}}


def sound(url: str) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": url}}


SPOKEN = {"type": "input_audio", "input_audio": {"data": base64.b64encode(CLIP).decode(), "format": "wav"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def body(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [{"role": "user", "content": list(parts)}], **more}


def prompt(request: Request) -> Prompt:
    found = request.params["prompt"]
    assert isinstance(found, Prompt)
    return found


async def test_parts_of_every_kind_become_indices_in_the_order_of_the_body() -> None:
    async with omni() as server:
        turns = [
            {"role": "system", "content": "Look and listen."},
            {"role": "user", "content": [said("What"), image(), SPOKEN, said("is this?"), movie()]},
            {"role": "assistant", "content": "A test."},
            {"role": "user", "content": [sound(data_url(CLIP, "audio/wav")), image(detail="high")]},
        ]
        response = await server.post(CHAT, {"model": "assistant", "messages": turns})
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"] == TEXT
        (request,) = server.orchestrator.requests
        assert request.inputs == ("text", "audio", "image", "video")
        assert [medium.modality for medium in request.media] == ["image", "audio", "video", "audio", "image"]
        assert [round(medium.seconds, 2) for medium in request.media] == [0, 0.5, 2.0, 0.5, 0]
        messages = prompt(request).messages or []
        first = [said("What"), *({"type": kind, "index": i} for i, kind in enumerate(("image", "audio")))]
        assert messages[1]["content"] == [*first, said("is this?"), {"type": "video", "index": 2}]
        assert messages[3]["content"] == [{"type": "audio", "index": 3}, {"type": "image", "index": 4}]
        assert prompt(request).media_kwargs == {}
        assert set(request.params) == {"prompt", "sampling"}  # the encoder reads no section
        await server.settled()


async def test_the_pixels_that_a_stage_gets_are_those_of_the_file() -> None:
    async with omni() as server:
        held = trio.Event()
        server.orchestrator.script = lambda request: [held]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.post, CHAT, body(image(), movie()))
            with trio.fail_after(5):
                while not server.orchestrator.requests:
                    await trio.sleep(0.01)
            (request,) = server.orchestrator.requests
            seen, moving = server.harness.payloads([medium.id for medium in request.media])
            assert np.array_equal(seen.tensors["pixels"], PIXELS)
            assert moving.tensors["frames"].shape == (4, 48, 64, 3)
            nursery.cancel_scope.cancel()
        await server.settled()


async def test_a_large_image_goes_through_the_media_process_like_a_small_one() -> None:
    large = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), np.uint8)
    async with omni() as server:
        response = await server.post(CHAT, body(said("?"), image(data_url(png(large), "image/png"))))
        assert response.status_code == 200
        assert server.orchestrator.requests[0].inputs == ("text", "image")
        await server.settled()


@pytest.mark.parametrize(
    ("fields", "kwargs", "frames"),
    [
        ({}, {}, 4),
        ({"mm_processor_kwargs": {"use_audio_in_video": True}}, {"use_audio_in_video": True}, 4),
        ({"use_audio_in_video": True}, {"use_audio_in_video": True}, 4),
        ({"use_audio_in_video": False, "mm_processor_kwargs": {"use_audio_in_video": False}}, {}, 4),
        ({"mm_processor_kwargs": {"fps": 5}}, {}, 10),
        (
            {"mm_processor_kwargs": {"fps": 5, "max_frames": 6, "use_audio_in_video": True}},
            {"use_audio_in_video": True},
            6,
        ),
    ],
)
async def test_how_a_video_is_taken_is_the_bodys_word(fields: dict[str, Any], kwargs: Any, frames: int) -> None:
    async with omni() as server:
        server.orchestrator.script = lambda request: [trio.Event()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.post, CHAT, body(movie(), **fields))
            with trio.fail_after(5):
                while not server.orchestrator.requests:
                    await trio.sleep(0.01)
            (request,) = server.orchestrator.requests
            assert prompt(request).media_kwargs == kwargs
            (payload,) = server.harness.payloads([request.media[0].id])
            assert len(payload.tensors["frames"]) == frames
            assert ("samples" in payload.tensors) == bool(kwargs)
            nursery.cancel_scope.cancel()
        await server.settled()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mm_processor_kwargs": {"fps": 0}}, "mm_processor_kwargs.fps"),
        ({"mm_processor_kwargs": {"fps": "2"}}, "mm_processor_kwargs.fps"),
        ({"mm_processor_kwargs": {"fps": 10**30}}, "mm_processor_kwargs.fps"),
        ({"mm_processor_kwargs": {"max_frames": 10**18}}, "mm_processor_kwargs.max_frames"),
        ({"mm_processor_kwargs": {"max_frames": 0}}, "mm_processor_kwargs.max_frames"),
        ({"mm_processor_kwargs": {"max_pixels": 1}}, "mm_processor_kwargs.max_pixels"),
        ({"mm_processor_kwargs": []}, "mm_processor_kwargs"),
        ({"use_audio_in_video": "yes"}, "use_audio_in_video"),
        ({"use_audio_in_video": True, "mm_processor_kwargs": {"use_audio_in_video": False}}, "use_audio_in_video"),
    ],
)
async def test_wrong_words_about_videos_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with omni() as server:
        assert error_of(await server.post(CHAT, body(movie(), **fields)), 400)["param"] == param
        await server.settled()


async def test_words_about_videos_are_refused_where_no_video_is_taken() -> None:
    async with served() as server:
        for fields in ({"use_audio_in_video": True}, {"mm_processor_kwargs": {"fps": 2}}):
            error = error_of(await server.post(CHAT, message(**fields)), 400)
            assert error["param"] == next(iter(fields))
        assert (await server.post(CHAT, message(use_audio_in_video=False))).status_code == 200


async def test_low_detail_is_a_small_image() -> None:
    tall = png(noise(1200, 600))
    async with omni() as server:
        server.orchestrator.script = lambda request: [trio.Event()]
        async with trio.open_nursery() as nursery:
            url = data_url(tall, "image/png")
            nursery.start_soon(server.post, CHAT, body(image(url, detail="low"), image(url, detail="auto")))
            with trio.fail_after(5):
                while not server.orchestrator.requests:
                    await trio.sleep(0.01)
            low, auto = server.harness.payloads([medium.id for medium in server.orchestrator.requests[0].media])
            assert low.tensors["pixels"].shape == (512, 256, 3)
            assert auto.tensors["pixels"].shape == (1200, 600, 3)
            nursery.cancel_scope.cancel()
        await server.settled()


B64 = base64.b64encode(PNG).decode()
URL = "messages[0].content[0].image_url.url"
BAD = {
    "truncated jpeg": (image(data_url(encoded(Image.fromarray(noise(200, 200)), "JPEG")[:2000], "image/jpeg")), URL),
    "no comma": (image("data:image/png;base64"), URL),
    "bad base64": (image("data:image/png;base64,####"), URL),
    "not base64": (image("data:image/png,%89PNG"), URL),
    "empty": (image("data:image/png;base64,"), URL),
    "no url": ({"type": "image_url", "image_url": {}}, URL),
    "an empty url": (image(" "), URL),
    "a text file": (image(data_url(b"hello", "image/png")), URL),
    "a bomb": (image(data_url(huge_png(12_000, 12_000), "image/png")), URL),
    "a file": (image("file:///etc/passwd"), URL),
    "bare base64": (image(B64), URL),
    "sound as an image": (image(data_url(CLIP, "image/png")), URL),
    "an image as sound": (sound(data_url(PNG, "audio/wav")), "messages[0].content[0].audio_url.url"),
    "an image as a video": (movie(data_url(PNG, "video/mp4")), "messages[0].content[0].video_url.url"),
    "no object": ({"type": "image_url", "image_url": B64}, URL),
    "an unknown detail": (image(detail="fine"), "messages[0].content[0].image_url.detail"),
    "an unknown field": (image(size=3), "messages[0].content[0].image_url.size"),
    "a field beside": ({**image(), "uuid": "x"}, "messages[0].content[0].uuid"),
    "the inner image": ({"type": "image", "index": 0}, "messages[0].content[0].type"),
    "the inner video": ({"type": "video", "index": 0}, "messages[0].content[0].type"),
    "loopback": (image("http://127.0.0.1:9/x.png"), URL),
    "metadata": (image("http://169.254.169.254/latest/"), URL),
    "mapped": (image("http://[::ffff:10.0.0.1]/"), URL),
}


@pytest.mark.parametrize("name", BAD)
async def test_one_bad_part_is_one_bad_request_that_names_the_field(name: str) -> None:
    part, param = BAD[name]
    async with omni() as server:
        error = error_of(await server.post(CHAT, body(part)), 400)
        assert error["param"] == param
        good = await server.post(CHAT, body(image()))
        assert good.status_code == 200
        assert len(server.orchestrator.requests) == 1
        await server.settled()


async def test_a_data_url_may_have_parameters_and_any_case() -> None:
    async with omni() as server:
        for head in (
            "data:image/png;param=1;base64,",
            "DATA:IMAGE/PNG;BASE64,",
            "data:;base64,",
            "data:text/plain;base64,",
        ):
            assert (await server.post(CHAT, body(image(head + B64)))).status_code == 200


@pytest.mark.parametrize(("pipeline", "takes"), [(PIPELINE, "audio"), (TEXT_ONLY, "text")])
async def test_a_model_that_takes_no_such_medium_says_so_before_it_is_touched(pipeline: Pipeline, takes: str) -> None:
    async with web(ok(PNG)) as other, served(pipeline=pipeline) as server:
        for part in (image(), movie(), image(other.url()), movie(data_url(b"no video", "video/mp4"))):
            error = error_of(await server.post(CHAT, {**body(said("?"), part), "model": None}), 400)
            assert error["code"] == "unsupported_modality"
            assert error["param"] == "messages[0].content[1].type"
        assert other.asked == []
        await server.settled()


async def test_media_by_url_are_fetched_in_the_order_of_the_body() -> None:
    files = {
        "/a.png": ok(PNG),
        "/b.mp4": ok(MOVIE, "video/mp4"),
        "/c.wav": ok(CLIP, "audio/wav"),
        "/d": moved("/a.png"),
    }

    async def reply(stream: trio.SocketStream, path: str) -> None:
        await trio.sleep({"/a.png": 0.2, "/b.mp4": 0.1}.get(path, 0.0))  # what comes first is not first
        await stream.send_all(files[path])

    async with web(reply) as files_server, omni(LOCAL) as server:
        parts = [image(files_server.url("/a.png")), movie(files_server.url("/b.mp4")), SPOKEN]
        parts += [sound(files_server.url("/c.wav")), image(files_server.url("/d")), image()]
        response = await server.post(CHAT, body(*parts))
        assert response.status_code == 200, response.text
        (request,) = server.orchestrator.requests
        assert [medium.modality for medium in request.media] == ["image", "video", "audio", "audio", "image", "image"]
        assert [round(medium.seconds, 1) for medium in request.media] == [0, 2, 0.5, 0.5, 0, 0]
        await server.settled()


async def test_a_url_that_fails_ends_the_others_and_names_its_part() -> None:
    async def reply(stream: trio.SocketStream, path: str) -> None:
        if path == "/missing":
            await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            await stream.receive_some()

    async with web(reply) as other, omni(LOCAL) as server:
        with trio.fail_after(5):
            response = await server.post(CHAT, body(image(other.url("/slow")), image(other.url("/missing"))))
        error = error_of(response, 400)
        assert error["param"] == "messages[0].content[1].image_url.url"
        await server.settled()
        with trio.fail_after(2):
            while other.open:
                await trio.sleep(0.01)


async def test_what_a_url_gives_is_judged_by_its_bytes() -> None:
    async with web(ok(b"<html>not an image</html>", "image/png")) as other, omni(LOCAL) as server:
        error = error_of(await server.post(CHAT, body(image(other.url()))), 400)
        assert (error["param"], error["code"]) == (URL, "invalid_image")
        await server.settled()


async def test_a_client_that_leaves_while_its_url_is_fetched_frees_everything() -> None:
    async def reply(stream: trio.SocketStream, path: str) -> None:
        await stream.receive_some()

    async with web(reply) as other, omni(LOCAL) as server:
        with trio.move_on_after(0.3):
            await server.post(CHAT, body(image(), movie(), image(other.url())))
        with trio.fail_after(5):
            while other.open or not other.asked:
                await trio.sleep(0.01)
        await server.settled()
        assert server.orchestrator.requests == []


@pytest.mark.parametrize("by", ["field", "header", "deployment"])
async def test_all_fetches_of_a_body_share_the_requests_deadline(by: str) -> None:
    """Each takes less than the deadline, and one after the other they take longer."""

    async def reply(stream: trio.SocketStream, path: str) -> None:
        await stream.receive_some()
        await trio.sleep(0.4)
        await stream.send_all(ok(PNG))

    settings = [LOCAL, "stages.media.options.max_fetches=1"]
    async with web(reply) as other, omni(*settings, *["limits.deadline_s=1"] * (by == "deployment")) as server:
        asked = body(*(image(other.url(f"/{i}")) for i in range(6)), **({"timeout": 1} if by == "field" else {}))
        begun = trio.current_time()
        response = await server.post(CHAT, asked, headers={"X-Request-Timeout": "1"} if by == "header" else {})
        assert error_of(response, 408)["code"] == "deadline_exceeded"
        assert trio.current_time() - begun < 2.0
        assert not server.orchestrator.requests
        await server.settled()


async def test_the_sum_of_the_parts_is_bounded() -> None:
    async with omni("stages.media.options.max_clips_per_body=2") as server:
        assert (await server.post(CHAT, body(image(), image()))).status_code == 200
        assert error_of(await server.post(CHAT, body(image(), image(), SPOKEN)), 400)["param"] == "messages"
    async with omni("stages.media.options.max_seconds=0.9", LOCAL) as server, web(ok(CLIP, "audio/wav")) as other:
        assert (await server.post(CHAT, body(SPOKEN, image()))).status_code == 200
        error = error_of(await server.post(CHAT, body(SPOKEN, sound(other.url()))), 400)
        assert error["param"] == "messages[0].content[1].audio_url.url"
        await server.settled()


async def test_the_openai_sdk_sends_images() -> None:
    content: Any = [said("What is this?"), image(detail="auto"), SPOKEN]
    async with omni() as server:
        messages: Any = [{"role": "user", "content": content}]
        done = await blocking(server.url, lambda it: it.chat.completions.create(model="assistant", messages=messages))
        assert done.choices[0].message.content == TEXT
        extra = {"mm_processor_kwargs": {"use_audio_in_video": True}}  # as vLLM's users write it
        messages[0]["content"] = [movie()]
        await blocking(
            server.url,
            lambda it: it.chat.completions.create(model="assistant", messages=messages, extra_body=extra),
        )
        assert [request.inputs for request in server.orchestrator.requests] == [
            ("text", "audio", "image"),
            ("text", "video"),
        ]
        await server.settled()


async def test_routes_without_messages_fetch_nothing() -> None:
    async with web(ok(PNG)) as other, served() as server:
        clip = {"data": base64.b64encode(CLIP).decode(), "format": "wav"}
        for path, fields in (
            ("/v1/audio/transcriptions", {"input_audio": clip}),
            ("/v1/audio/speech", {"input": "hi", "ref_audio": clip["data"]}),
        ):
            error_of(await server.post(path, {**body(image(other.url())), **fields}), 400)
        assert other.asked == []
        await server.settled()


async def test_a_clip_that_a_route_or_a_model_does_not_take_is_not_fetched() -> None:
    async with web(ok(png(noise(64, 64)))) as server, omni() as omnis, served() as mute:
        clip = {"ref_audio": server.url("/voice.wav")}
        error = error_of(await omnis.post(CHAT, body(image(), **clip)), 400)
        assert (error["param"], error["code"]) == ("ref_audio", "unknown_parameter")
        error = error_of(await mute.post("/v1/audio/speech", {"input": "Hello.", **clip}), 400)
        assert (error["param"], error["code"]) == ("ref_audio", "unsupported_parameter")
        assert server.asked == []


async def test_escapes_in_the_type_do_not_get_around_the_media_process() -> None:
    async with omni() as server:
        raw = json.dumps(body(image())).replace('"image_url"', '"image\\u005furl"')
        response = await server.client.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 200
        assert len(server.orchestrator.requests[0].media) == 1


async def test_fetches_are_counted_by_their_outcome() -> None:
    async with web(ok(PNG)) as other, omni(LOCAL) as server:
        for url in (other.url(), other.url(), "http://10.0.0.1/", "http://no-such-name.invalid/"):
            await server.post(CHAT, body(image(url)))
        text = (await server.get("/metrics")).text
        for outcome, count in (("fetched", 2), ("refused", 1), ("failed", 1)):
            assert f'omni_actors_url_fetches_total{{outcome="{outcome}"}} {count}.0' in text
        assert f"omni_actors_url_fetched_bytes_total {2 * len(PNG)}.0" in text
