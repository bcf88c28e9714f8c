"""``POST /v1/images/generations``, whole: what the workers get of a body, and what the client gets of the pictures."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.entrypoints.fakes import TEXT_ONLY, Server, Step, served
from tests.entrypoints.images.painter import FACTS, GENERATIONS, SEED, WRITER, painter, picture, seen
from tests.entrypoints.test_middleware import error_of

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.errors import OmniError, invalid_request, stage_failed
from omni_actors.protocol.params import ImageGeneration, LoraScale
from omni_actors.protocol.request import Completed, MediaChunk, Request, Usage

PNG = b"\x89PNG\r\n\x1a\n"


async def made(server: Server, **body: Any) -> dict[str, Any]:
    """The answer to a body."""
    response = await server.post(GENERATIONS, {"prompt": "a boat", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_prompt_becomes_a_picture_with_its_seed() -> None:
    async with painter() as server:
        answer = await made(server)
        (datum,) = answer["data"]
        assert base64.b64decode(datum["b64_json"]) == picture(64, 48, SEED)
        assert datum["seed"] == SEED
        assert answer["size"] == "64x48"
        assert answer["output_format"] == "png"
        assert answer["usage"]["output_tokens"] == 64 * 48 // 256
        assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]
        assert answer["usage"]["steps"] == FACTS["steps"]
        (request,) = server.orchestrator.requests
        assert seen(request) == ImageGeneration(prompt="a boat")
        await server.settled()


async def test_each_of_n_pictures_has_a_seed_of_its_own_that_makes_it_again() -> None:
    async with painter() as server:
        several = (await made(server, n=3, seed=7))["data"]
        assert [datum["seed"] for datum in several] == [7, 8, 9]
        (again,) = (await made(server, seed=several[2]["seed"]))["data"]
        assert again == several[2]
        assert again != several[1]


EVERY_KNOB: dict[str, Any] = {
    "negative_prompt": "fog",
    "n": 2,
    "size": "512x256",
    "num_inference_steps": 20,
    "guidance_scale": 3.5,
    "true_cfg_scale": 2.0,
    "seed": 11,
    "layers": 3,
    "loras": ["pen", {"name": "ink", "scale": 0.5}],
    "cache": {"threshold": 0.1},
    "output_format": "webp",
    "output_compression": 40,
    "background": "transparent",
}


async def test_every_knob_reaches_the_workers() -> None:
    async with painter(facts=FACTS | {"loras": ("pen", "ink")}) as server:
        await made(server, **EVERY_KNOB)
        assert seen(server.orchestrator.requests[0]) == ImageGeneration(
            prompt="a boat",
            negative_prompt="fog",
            n=2,
            width=512,
            height=256,
            steps=20,
            guidance=3.5,
            true_guidance=2.0,
            seed=11,
            layers=3,
            loras=[LoraScale("pen"), LoraScale("ink", 0.5)],
            cache={"threshold": 0.1},
            format="webp",
            compression=40,
            background="transparent",
        )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"width": 512, "height": 256}, {"width": 512, "height": 256}),
        ({"size": "512X256"}, {"width": 512, "height": 256}),
        ({"size": "auto"}, {}),
        ({"steps": 4}, {"steps": 4}),
        ({"steps": 4, "num_inference_steps": 4}, {"steps": 4}),
        ({"cfg_scale": 2}, {"true_guidance": 2.0}),
        ({"output_format": "jpg"}, {"format": "jpeg"}),
        ({"background": "auto", "quality": "hd", "moderation": "low", "user": "me"}, {}),
        ({"lora": {"lora_name": "pen", "lora_scale": 0.25, "lora_int_id": 4}}, {"loras": [LoraScale("pen", 0.25)]}),
        ({"lora": "pen"}, {"loras": [LoraScale("pen")]}),
        ({"negative_prompt": None, "n": None, "size": None}, {}),
    ],
)
async def test_other_spellings_of_the_same(body: dict[str, Any], expected: dict[str, Any]) -> None:
    async with painter(facts=FACTS | {"loras": ("pen",)}) as server:
        await made(server, **body)
        assert seen(server.orchestrator.requests[0]) == ImageGeneration(prompt="a boat", **expected)


async def test_layers_of_one_picture_are_told_apart() -> None:
    def layered(request: Request) -> list[Step]:
        meta = {"format": "png", "width": 16, "height": 16, "seed": 5}
        chunks: list[Step] = [
            MediaChunk(0, "image", {**meta, "index": 0, "layer": place}, picture(16, 16, place)) for place in (1, 0)
        ]
        return [*chunks, Completed({"image": Usage(images=2)})]

    async with painter(layered) as server:
        data = (await made(server, layers=2))["data"]
        assert [(datum["layer"], datum["seed"]) for datum in data] == [(0, 5), (1, 5)]


async def test_a_model_without_a_media_process_makes_pictures_too() -> None:
    async with painter(pipeline=WRITER) as server:
        assert (await made(server))["data"]


@pytest.mark.parametrize("pipeline", [TEXT_ONLY], ids=lambda it: it.name)
async def test_a_model_that_makes_no_pictures_says_so(pipeline: Pipeline) -> None:
    async with served(pipeline=pipeline) as server:
        error = error_of(await server.post(GENERATIONS, {"prompt": "a boat"}), 400)
        assert error["code"] == "unsupported_task"
        assert "images" not in (await server.get("/v1/models")).json()["data"][0]["capabilities"]


async def test_variations_are_refused_by_name() -> None:
    async with painter() as server:
        error = error_of(await server.post("/v1/images/variations", {"image": "x"}), 404)
        assert error["code"] == "unsupported_route"
        assert "/v1/images/edits" in error["message"]
        assert "/v1/images/generations" in error["message"]
        assert server.orchestrator.requests == []


async def test_the_models_card_tells_what_the_pictures_can_be() -> None:
    async with painter(facts=FACTS | {"loras": ("pen",)}) as server:
        (card,) = (await server.get("/v1/models")).json()["data"]
        assert set(card["capabilities"]["tasks"]) == {"image", "image_edit"}
        assert card["capabilities"]["images"] == {
            "default_size": "64x48",
            "sizes": [],
            "multiple": 16,
            "max_pixels": 1 << 20,
            "max_side": None,
            "formats": ["png", "webp", "jpeg"],
            "steps": 8,
            "max_steps": 1000,
            "guidance_scale": 4.0,
            "step_batched": True,
            "loras": ["pen"],
        }


@pytest.mark.parametrize(
    ("error", "body", "status", "param"),
    [
        (invalid_request("Too many.", "steps"), {"num_inference_steps": 9}, 400, "num_inference_steps"),
        (invalid_request("One scale.", "true_guidance"), {"cfg_scale": 2}, 400, "cfg_scale"),
        (invalid_request("Too large.", "size"), {"width": 64, "height": 64}, 400, "width"),
        (stage_failed("image"), {}, 500, None),
    ],
)
async def test_a_stage_that_refuses_names_the_body_s_own_field(
    error: OmniError, body: dict[str, Any], status: int, param: str | None
) -> None:
    async with painter(lambda request: [0.0, error]) as server:
        found = error_of(await server.post(GENERATIONS, {"prompt": "a boat", **body}), status)
        assert found["param"] == param
        await server.settled()


async def test_a_request_without_a_picture_is_an_error() -> None:
    async with painter(lambda request: [Completed({})]) as server:
        error_of(await server.post(GENERATIONS, {"prompt": "a boat"}), 500)


async def test_deadline_priority_and_tenant_are_those_of_other_routes() -> None:
    options = ServerOptions(api_keys=("a-long-random-text",))
    async with painter(options=options) as server:
        body = {"prompt": "a boat", "priority": 2, "timeout": 30}
        error_of(await server.post(GENERATIONS, body), 401)
        headers = {"Authorization": "Bearer a-long-random-text", "X-Request-Priority": "5"}
        assert (await server.post(GENERATIONS, body, headers=headers)).status_code == 200
        (request,) = server.orchestrator.requests
        assert request.priority == 5
        assert request.tenant
        assert request.deadline_s is not None
        assert request.deadline_s <= 30


async def test_requests_are_counted_by_task() -> None:
    async with painter() as server:
        await made(server)
        text = (await server.get("/metrics")).text
        assert 'omni_actors_requests_total{outcome="completed",task="image"} 1.0' in text
        assert 'omni_actors_time_to_first_audio_seconds_count{task="image"}' not in text


async def test_a_page_of_another_origin_may_ask() -> None:
    async with painter() as server:
        headers = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
        assert (await server.client.options(GENERATIONS, headers=headers)).status_code == 204
        response = await server.post(GENERATIONS, {"prompt": "a boat"}, headers={"Origin": "https://example.org"})
        assert response.headers["access-control-allow-origin"] == "*"
