"""Chats with pictures: in the answer as data URLs, in the question as pictures to edit."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.entrypoints.fakes import Step
from tests.entrypoints.images.painter import FACTS, SEED, WRITER, paint, painter, picture, seen
from tests.entrypoints.images.sse import events_of
from tests.entrypoints.test_media import CHAT, LOCAL, image
from tests.entrypoints.test_middleware import error_of
from tests.media.web import ok, web

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration
from omni_actors.protocol.request import Request, TextDelta

DATA_URL = "data:image/png;base64,"
PICTURE = DATA_URL + base64.b64encode(picture(16, 16, 1)).decode()


def said(*parts: Any, **more: Any) -> dict[str, Any]:
    """A chat with one message."""
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)
    return {"messages": [{"role": "user", "content": content}], **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def shown(url: str) -> bytes:
    """The bytes behind a data URL."""
    assert url.startswith(DATA_URL)
    return base64.b64decode(url.removeprefix(DATA_URL))


async def test_the_last_user_message_is_the_prompt_and_the_answer_has_a_picture() -> None:
    messages = [
        {"role": "system", "content": "You paint."},
        {"role": "user", "content": "a boat"},
        {"role": "assistant", "content": "", "images": [image(PICTURE)]},
        {"role": "user", "content": "a house"},
    ]
    async with painter() as server:
        response = await server.post(
            CHAT, {"messages": messages, "modalities": ["image"], "seed": 3, "width": 64, "height": 64}
        )
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        (part,) = choice["message"]["images"]
        assert shown(part["image_url"]["url"]) == picture(64, 64, 3)
        assert part["type"] == "image_url"
        assert choice["finish_reason"] == "stop"
        assert response.json()["usage"]["completion_tokens"] == 16
        (request,) = server.orchestrator.requests
        assert request.task == "image"
        assert seen(request) == ImageGeneration(prompt="a house", seed=3, width=64, height=64)


async def test_a_model_that_only_makes_pictures_needs_no_modalities() -> None:
    async with painter(pipeline=WRITER) as server:
        assert (await server.post(CHAT, said("a boat"))).json()["choices"][0]["message"]["images"]


async def test_vllm_omni_s_parts_come_on_request() -> None:
    async with painter() as server:
        body = said("a boat", modalities=["image"], images_as="content", num_outputs_per_prompt=2)
        message = (await server.post(CHAT, body)).json()["choices"][0]["message"]
        assert [shown(part["image_url"]["url"]) for part in message["content"]] == [
            picture(64, 48, SEED),
            picture(64, 48, SEED + 1),
        ]
        assert "images" not in message


@pytest.mark.parametrize("place", ["images", "content"])
async def test_a_stream_brings_each_picture_in_a_chunk(place: str) -> None:
    async with painter() as server:
        body = said("a boat", stream=True, n=2, images_as=place, stream_options={"include_usage": True})
        response = await server.post(CHAT, body)
        chunks, _ = events_of(response.text)
        assert response.text.endswith("data: [DONE]\n\n")
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        parts = [part for delta in deltas[1:] for part in delta.get(place, [])]
        assert [shown(part["image_url"]["url"]) for part in parts] == [picture(64, 48, SEED), picture(64, 48, SEED + 1)]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "stop"]
        assert chunks[-1]["usage"]["completion_tokens"] == 24
        assert {chunk["modality"] for chunk in chunks} == {"image"}
        await server.settled()


async def test_pictures_of_the_last_message_are_edited_and_others_are_not() -> None:
    body = {
        "messages": [
            {"role": "user", "content": [text("a boat"), image(PICTURE)]},
            {"role": "assistant", "content": "Here."},
            {"role": "user", "content": [text("make both"), image(PICTURE), image(PICTURE), text("blue")]},
        ],
        "modalities": ["image"],
    }
    async with painter() as server:
        assert (await server.post(CHAT, body)).status_code == 200
        (request,) = server.orchestrator.requests
        assert (request.task, request.inputs) == ("image_edit", ("text", "image"))
        assert seen(request) == ImageGeneration(prompt="make both\nblue", pictures=2)
        assert len(request.media) == 2
        await server.settled()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "only text from a model that writes none": (said("a", modalities=["text"]), "modalities"),
    "text beside it": (said("a", modalities=["text", "image"]), "modalities"),
    "sound": (said("a", modalities=["audio"]), "modalities[0]"),
    "no user": ({"messages": [{"role": "system", "content": "a"}]}, "messages"),
    "no words": (said(image(PICTURE)), "messages[0].content"),
    "a temperature": (said("a", temperature=0.5), "temperature"),
    "a size between two": (said("a", size="1021x1021"), "size"),
    "two counts": (said("a", n=1, num_outputs_per_prompt=2), "n"),
    "a bound of tokens": (said("a", max_tokens=5), "max_tokens"),
    "another model": (said("a", model="gpt-4o"), "model"),
    "an unknown field": (said("a", stepz=5), "stepz"),
    "options of a stream that is none": (said("a", stream_options={"include_usage": True}), "stream_options"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_chat_is_refused_by_name(what: str) -> None:
    body, param = BAD[what]
    async with painter() as server:
        error = error_of(await server.post(CHAT, body), 404 if param == "model" else 400)
        assert error["param"] == param
        assert server.orchestrator.requests == []


async def test_a_model_that_takes_no_pictures_says_so() -> None:
    async with painter(pipeline=WRITER) as server:
        error = error_of(await server.post(CHAT, said(text("a"), image(PICTURE))), 400)
        assert error["code"] == "unsupported_modality"


@pytest.mark.parametrize("fields", [{"size": "1021x1021"}, {"steps": 0}, {"lora": "pen"}, {"model": "x"}, {"pitch": 1}])
async def test_a_chat_that_can_be_refused_without_it_fetches_nothing(fields: dict[str, Any]) -> None:
    async with web(ok(picture(16, 16, 1))) as listener, painter(paint, LOCAL) as server:
        response = await server.post(CHAT, said(text("a"), image(listener.url("/x.png")), **fields))
        assert response.status_code in (400, 404)
        assert listener.connections == 0
        assert (await server.post(CHAT, said(text("a"), image(listener.url("/x.png"))))).status_code == 200
        assert listener.connections == 1


async def test_a_stage_s_refusal_names_a_field_of_the_chat() -> None:
    async with painter(lambda request: [0.0, invalid_request("None.", "loras")], facts=FACTS) as server:
        assert error_of(await server.post(CHAT, said("a")), 400)["param"] == "loras"


async def test_a_model_that_also_writes_answers_with_both() -> None:
    from dataclasses import replace

    from omni_actors.pipelines.declaration import Stage, Task

    writer = Stage("writer", "autoregressive", "adapter:W", sections=("image",), emits="text")
    tasks = (Task("image", {"text": "writer"}, {"text": "writer", "image": "pictures"}),)
    from omni_actors.pipelines.declaration import Edge, Port

    stage = replace(WRITER.stages[0], ports=(Port("plan", "text"),))
    both = replace(
        WRITER,
        name="both",
        stages=(writer, stage, *WRITER.stages[1:]),
        edges=(Edge("writer", "image.plan", "text"), *WRITER.edges),
        tasks=tasks,
    )

    def script(request: Request) -> list[Step]:
        return [TextDelta(0, 0, "Here it is.", [1], "stop", None, None, None), *paint(request)]

    async with painter(script, pipeline=both) as server:
        answer = (await server.post(CHAT, said("a", modalities=["text", "image"]))).json()
        assert answer["choices"][0]["message"]["content"] == "Here it is."
        assert answer["choices"][0]["message"]["images"]
        assert server.orchestrator.requests[0].outputs == ("text", "image")
        chunks, _ = events_of((await server.post(CHAT, said("a", modalities=["text", "image"], stream=True))).text)
        assert [chunk["modality"] for chunk in chunks] == ["image", "text", "image", "image"]
