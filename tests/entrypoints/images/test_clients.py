"""Requests as clients other than the SDK send them, byte for byte: Open WebUI, ComfyUI's nodes and LobeChat."""

from __future__ import annotations

import base64
from typing import Any

from tests.entrypoints.images.painter import EDITS, GENERATIONS, SEED, painter, picture, seen
from tests.entrypoints.images.test_edits import FIRST, SECOND, hole
from tests.entrypoints.test_media import CHAT

from omni_actors.protocol.params import ImageGeneration

BOUNDARY = "----ComfyUIFormBoundary7MA4YWxkTrZu0gW"


def multipart(*parts: tuple[str, bytes, str | None]) -> bytes:
    """A form as a client without a library writes it: (name, data, file name)."""
    made = b""
    for name, data, filename in parts:
        named = f'; filename="{filename}"' if filename is not None else ""
        kind = "Content-Type: application/octet-stream\r\n" if filename is not None else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n{kind}\r\n'
        made += head.encode() + data + b"\r\n"
    return made + f"--{BOUNDARY}--\r\n".encode()


async def test_open_webui_generates_and_reads_either_kind_of_picture() -> None:
    async with painter() as server:
        ids = [model["id"] for model in (await server.get("/v1/models")).json()["data"]]
        body = {"model": ids[0], "prompt": "a boat", "n": 1, "size": "512x512", "response_format": "b64_json"}
        (datum,) = (await server.post(GENERATIONS, body)).json()["data"]
        assert base64.b64decode(datum["b64_json"]) == picture(512, 512, SEED)
        (datum,) = (await server.post(GENERATIONS, body | {"response_format": "url"})).json()["data"]
        assert (await server.client.get(datum["url"])).content == picture(512, 512, SEED)


async def test_open_webui_edits_one_picture_or_several() -> None:
    async with painter() as server:
        for files in ([("image", FIRST)], [("image[]", FIRST), ("image[]", SECOND)]):
            parts = [(name, ("image.png", data, "image/png")) for name, data in files]
            fields = {"model": "painter", "prompt": "make it blue", "n": "1", "size": "64x64"}
            response = await server.client.post(EDITS, data=fields, files=parts)
            assert response.status_code == 200, response.text
        assert [seen(request).pictures for request in server.orchestrator.requests] == [1, 2]


async def test_open_webui_shows_pictures_of_a_chat() -> None:
    async with painter() as server:
        body = {"model": "painter", "messages": [{"role": "user", "content": "a boat"}], "stream": False}
        message = (await server.post(CHAT, body)).json()["choices"][0]["message"]
        assert message["images"][0]["type"] == "image_url"
        assert message["images"][0]["image_url"]["url"].startswith("data:image/png;base64,")


async def test_a_comfyui_node_generates_with_its_sampler_s_values() -> None:
    async with painter() as server:
        body: dict[str, Any] = {
            "model": "painter",
            "prompt": "a boat",
            "negative_prompt": "",
            "n": 1,
            "size": "512x512",
            "response_format": "b64_json",
            "num_inference_steps": 20,
            "guidance_scale": 7.5,
            "true_cfg_scale": 1.0,
            "seed": 2**62 + 1,
        }
        (datum,) = (await server.post(GENERATIONS, body)).json()["data"]
        assert datum["seed"] == 2**62 + 1
        assert seen(server.orchestrator.requests[0]).steps == 20


async def test_a_comfyui_node_edits_by_a_form_of_its_own() -> None:
    async with painter() as server:
        content = multipart(
            ("prompt", b"make it blue", None),
            ("image[]", FIRST, "image_0.png"),
            ("image[]", SECOND, "image_1.png"),
            ("mask", hole(32, 16), "mask.png"),
            ("negative_prompt", b"", None),
            ("num_inference_steps", b"4", None),
            ("true_cfg_scale", b"4.0", None),
            ("seed", b"7", None),
            ("lora", b"", None),
            ("response_format", b"b64_json", None),
        )
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        response = await server.client.post(EDITS, content=content, headers=headers)
        assert response.status_code == 200, response.text
        assert seen(server.orchestrator.requests[0]) == ImageGeneration(
            prompt="make it blue", steps=4, true_guidance=4.0, seed=7, pictures=2, mask=True
        )


async def test_a_comfyui_node_chats() -> None:
    async with painter() as server:
        url = "data:image/png;base64," + base64.b64encode(FIRST).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "make it blue"}]
        body = {"model": "painter", "messages": [{"role": "user", "content": content}], "modalities": ["image"]}
        response = await server.post(CHAT, {**body, "num_inference_steps": 4, "images_as": "content"})
        (part,) = response.json()["choices"][0]["message"]["content"]
        assert part["image_url"]["url"].startswith("data:image/png;base64,")
        assert seen(server.orchestrator.requests[0]).pictures == 1


async def test_lobechat_asks_a_chat_for_a_picture() -> None:
    async with painter() as server:
        body = {
            "model": "painter",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a boat"}]}],
            "modalities": ["image"],
            "temperature": 1,
            "top_p": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "stream": False,
        }
        answer = (await server.post(CHAT, body)).json()
        assert answer["choices"][0]["message"]["images"][0]["image_url"]["url"]
