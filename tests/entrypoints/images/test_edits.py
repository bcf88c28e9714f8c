"""``POST /v1/images/edits``: forms and JSON, several pictures and a mask, and what is wrong with them."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from tests.entrypoints.fakes import Server, served
from tests.entrypoints.images.painter import EDITS, PAINTER, WRITER, paint, painter, picture, seen
from tests.entrypoints.images.sse import events_of
from tests.entrypoints.test_media import LOCAL
from tests.entrypoints.test_middleware import error_of
from tests.media.pictures import png
from tests.media.web import ok, web

from omni_actors.protocol.params import ImageGeneration

FIRST, SECOND = picture(32, 16, 1), picture(8, 8, 2)
PATIENT = "limits.max_queued=0"


def hole(width: int, height: int, alpha: int = 0) -> bytes:
    """A mask whose left half is transparent."""
    pixels = np.full((height, width, 4), 255, np.uint8)
    pixels[:, : width // 2, 3] = alpha
    return png(pixels)


MASK = hole(32, 16)


def data_url(data: bytes) -> dict[str, str]:
    return {"image_url": "data:image/png;base64," + base64.b64encode(data).decode()}


async def form(server: Server, files: list[tuple[str, bytes]], **fields: Any) -> httpx.Response:
    """The answer to a form, as an HTTP library of a client writes it."""
    parts = [(name, (f"{place}.png", data, "image/png")) for place, (name, data) in enumerate(files)]
    data = {"prompt": "make it blue"} | {name: value for name, value in fields.items() if value is not None}
    return await server.client.post(EDITS, data=data, files=parts)


@pytest.mark.parametrize("name", ["image", "image[]"])
async def test_a_form_brings_several_pictures_and_a_mask(name: str) -> None:
    async with painter() as server:
        files = [(name, FIRST), (name, SECOND), (name, FIRST), ("mask", MASK)]
        response = await form(server, files, n="2", size="64x64", steps="5", strength="0.5", seed="7")
        assert response.status_code == 200, response.text
        assert [datum["seed"] for datum in response.json()["data"]] == [7, 8]
        (request,) = server.orchestrator.requests
        assert (request.task, request.inputs, request.outputs) == ("image_edit", ("text", "image"), ("image",))
        assert seen(request) == ImageGeneration(
            prompt="make it blue",
            n=2,
            width=64,
            height=64,
            steps=5,
            strength=0.5,
            seed=7,
            pictures=3,
            mask=True,
        )
        assert [(it.width, it.height) for it in request.media] == [(32, 16), (8, 8), (32, 16), (32, 16)]
        await server.settled()


async def test_json_brings_the_same() -> None:
    async with painter() as server:
        body = {"prompt": "make it blue", "images": [data_url(FIRST), data_url(SECOND)], "mask": data_url(MASK)}
        response = await server.post(EDITS, body)
        assert response.status_code == 200, response.text
        (request,) = server.orchestrator.requests
        assert seen(request) == ImageGeneration(prompt="make it blue", pictures=2, mask=True)
        assert len(request.media) == 3
        await server.settled()


async def test_other_names_of_a_form_s_fields() -> None:
    async with web(ok(SECOND, "image/png")) as listener, painter(paint, LOCAL) as server:
        files = [("image", FIRST), ("mask_image", MASK)]
        fields = {"url": listener.url("/x.png"), "num_inference_steps": "3", "quality": "high", "user": ""}
        response = await form(server, files, **fields)
        assert response.status_code == 200, response.text
        (request,) = server.orchestrator.requests
        assert seen(request) == ImageGeneration(prompt="make it blue", pictures=2, mask=True, steps=3)
        assert [(it.width, it.height) for it in request.media] == [(32, 16), (8, 8), (32, 16)]


async def test_an_edit_streams_events_of_its_own() -> None:
    async with painter() as server:
        response = await form(server, [("image", FIRST)], stream="true", partial_images="1")
        events, _ = events_of(response.text)
        assert [event["type"] for event in events] == ["image_edit.partial_image", "image_edit.completed"]


BAD: dict[str, tuple[list[tuple[str, bytes]], dict[str, Any], str]] = {
    "a mask without a picture": ([("mask", MASK)], {}, "image"),
    "a mask of another size": ([("image", SECOND), ("mask", MASK)], {}, "mask"),
    "a mask that hides nothing": ([("image", FIRST), ("mask", picture(32, 16, 9))], {}, "mask"),
    "two masks": ([("image", FIRST), ("mask", MASK), ("mask", MASK)], {}, "mask"),
    "two masks by two names": ([("image", FIRST), ("mask", MASK), ("mask_image", MASK)], {}, "mask_image"),
    "seventeen pictures": ([("image", SECOND)] * 17, {}, "image"),
    "a file elsewhere": ([("image", FIRST), ("video", FIRST)], {}, "video"),
    "a picture that is none": ([("image", b"hello")], {}, "image"),
    "no prompt": ([("image", FIRST)], {"prompt": None}, "prompt"),
    "a strength of nothing": ([("image", FIRST)], {"strength": "0"}, "strength"),
    "a strength that is no number": ([("image", FIRST)], {"strength": "nan"}, "strength"),
    "guidance that is no number": ([("image", FIRST)], {"guidance_scale": "nan"}, "guidance_scale"),
    "no pictures to make": ([("image", FIRST)], {"n": "0"}, "n"),
    "a size between two": ([("image", FIRST)], {"size": "1021x1021"}, "size"),
    "an adapter in broken JSON": ([("image", FIRST)], {"lora": "{"}, "lora"),
    "an unknown field": ([("image", FIRST)], {"stepz": "3"}, "stepz"),
    "another model": ([("image", FIRST)], {"model": "gpt-image-1"}, "model"),
    "a private address": ([("image", FIRST)], {"url": "http://10.0.0.1/x.png"}, "url[0]"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_form_is_refused_by_name_and_the_next_one_works(what: str) -> None:
    files, fields, param = BAD[what]
    async with painter() as server:
        if "prompt" in fields:
            fields = {"prompt": ""}
        error = error_of(await form(server, files, **fields), 404 if param == "model" else 400)
        assert error["param"] == param
        assert server.orchestrator.requests == []
        assert (await form(server, [("image", FIRST)])).status_code == 200
        await server.settled()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"images": []}, "images"),
        ({"images": None}, "images"),
        ({"images": [{"file_id": "file-1"}]}, "images[0].file_id"),
        ({"images": [{"type": "image", "index": 0}]}, "images[0].image_url"),
        ({"images": ["x"]}, "images[0]"),
        ({"mask": data_url(hole(8, 8))}, "mask"),
        ({"mask": {"image_url": 3}}, "mask.image_url"),
        ({"images": [data_url(SECOND)] * 17}, "images"),
        ({"images": [{"image_url": "ftp://example.org/x.png"}]}, "images[0].image_url"),
        ({"size": "0x512"}, "size"),
        ({"markup": {}}, "markup"),
    ],
)
async def test_a_bad_json_body_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    async with painter() as server:
        body = {"prompt": "make it blue", "images": [data_url(FIRST)], **change}
        assert error_of(await server.post(EDITS, body), 400)["param"] == param
        assert server.orchestrator.requests == []
        await server.settled()


@pytest.mark.parametrize("fields", [{"size": "1021x1021"}, {"n": 0}, {"lora": "pen"}, {"model": "x"}, {"pitch": 1}])
async def test_an_edit_that_can_be_refused_without_it_fetches_nothing(fields: dict[str, Any]) -> None:
    async with web(ok(FIRST)) as listener, painter(paint, LOCAL) as server:
        url = listener.url("/x.png")
        response = await server.post(EDITS, {"prompt": "a", "images": [{"image_url": url}], **fields})
        assert response.status_code in (400, 404)
        response = await form(server, [("image", FIRST)], url=url, **{name: str(it) for name, it in fields.items()})
        assert response.status_code in (400, 404)
        assert listener.connections == 0
        assert server.orchestrator.requests == []
        assert (await server.post(EDITS, {"prompt": "a", "images": [{"image_url": url}]})).status_code == 200
        assert listener.connections == 1


async def test_a_model_that_edits_nothing_says_so() -> None:
    async with served(paint, pipeline=WRITER) as server:
        assert error_of(await form(server, [("image", FIRST)]), 400)["code"] == "unsupported_task"
        assert PAINTER.tasks[1].name == "image_edit"
