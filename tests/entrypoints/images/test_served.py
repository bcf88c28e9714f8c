"""Pictures over HTTP with real workers: the stub's painter, the stage that writes files, and the unmodified SDK."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import numpy as np
import trio
from openai import OpenAI
from tests.entrypoints.images.painter import EDITS, GENERATIONS
from tests.entrypoints.images.sse import events_of
from tests.entrypoints.images.test_bad_bodies import BAD
from tests.entrypoints.sdk import blocking, strict
from tests.entrypoints.test_media import CHAT
from tests.entrypoints.test_middleware import error_of
from tests.media.pictures import png
from tests.media.writing.harness import pixels_of, smooth

from omni_actors import AsyncOmni, ServerOptions, http_app, open_omni, serve_http
from omni_actors.models.stub.painter import painted

PROMPT = "a quiet sea"


@dataclass
class Deployment:
    """A served model, and its workers."""

    url: str
    omni: AsyncOmni
    client: httpx.AsyncClient

    async def counter(self, name: str) -> float:
        """The sum of a counter over the workers that paint."""
        return sum(it.get(name, 0.0) for it in (await self.omni.orchestrator.counters())["image"])


@asynccontextmanager
async def deployment(*overrides: str) -> AsyncIterator[Deployment]:
    """A served ``stub-image``, checked at the end to hold nothing."""
    async with open_omni("stub-image", overrides=overrides) as omni, trio.open_nursery() as nursery:
        app = http_app(omni, ServerOptions(port=0))
        (url,) = await nursery.start(partial(serve_http, omni, app=app))
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            found = Deployment(url, omni, client)
            yield found
        with trio.fail_after(10):
            while await found.counter("running"):
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


def decoded(datum: Any) -> Any:
    return pixels_of(base64.b64decode(datum["b64_json"]))


async def test_pictures_of_every_kind_of_request() -> None:
    async with deployment() as served:
        client = served.client
        body = {"prompt": PROMPT, "n": 2, "size": "48x80", "seed": 5}
        answer = (await client.post(GENERATIONS, json=body)).json()
        for seed, datum in zip((5, 6), answer["data"], strict=True):
            assert datum["seed"] == seed
            assert np.array_equal(decoded(datum), painted(PROMPT, seed, 48, 80))
        assert answer["usage"]["steps"] == 16

        drawn = (await client.post(GENERATIONS, json={"prompt": PROMPT})).json()["data"][0]
        again = (await client.post(GENERATIONS, json={"prompt": PROMPT, "seed": drawn["seed"]})).json()["data"][0]
        assert again == drawn

        for format in ("webp", "jpeg"):
            by_url = {**body, "output_format": format, "response_format": "url"}
            (first, _) = (await client.post(GENERATIONS, json=by_url)).json()["data"]
            file = await client.get(first["url"])
            assert file.headers["content-type"] == f"image/{format}"
            assert pixels_of(file.content).shape == (80, 48, 3)

        streamed = {**body, "stream": True, "partial_images": 3, "n": 1}
        events, _ = events_of((await client.post(GENERATIONS, json=streamed)).text)
        assert [event["type"].rpartition(".")[2] for event in events][-1] == "completed"
        assert np.array_equal(decoded(events[-1]), painted(PROMPT, 5, 48, 80))

        chat = {"messages": [{"role": "user", "content": PROMPT}], "size": "48x80", "seed": 6}
        message = (await client.post(CHAT, json=chat)).json()["choices"][0]["message"]
        url = message["images"][0]["image_url"]["url"]
        assert np.array_equal(pixels_of(base64.b64decode(url.partition(",")[2])), painted(PROMPT, 6, 48, 80))

        (card,) = (await client.get("/v1/models")).json()["data"]
        assert card["capabilities"]["images"]["default_size"] == "64x64"
        assert card["capabilities"]["images"]["multiple"] == 8


async def test_outside_of_a_mask_the_pixels_stay() -> None:
    base = smooth(64, 64)
    mask = np.full((64, 64, 4), 255, np.uint8)
    mask[20:40, 10:50, 3] = 0
    wanted = base.copy()
    wanted[20:40, 10:50] = painted(PROMPT, 5, 64, 64)[20:40, 10:50]
    async with deployment() as served:

        def use(client: OpenAI) -> Any:
            pictures = [("a.png", png(base), "image/png")] * 3
            mine = ("mask.png", png(mask), "image/png")
            return client.images.edit(image=pictures, mask=mine, prompt=PROMPT, extra_body={"seed": 5})

        answer = strict(await blocking(served.url, use))
        assert np.array_equal(pixels_of(base64.b64decode(answer.data[0].b64_json)), wanted)
        link = [{"image_url": f"data:image/png;base64,{base64.b64encode(png(it)).decode()}"} for it in (base, mask)]
        body = {"prompt": PROMPT, "seed": 5, "images": link[:1], "mask": link[1]}
        (datum,) = (await served.client.post(EDITS, json=body)).json()["data"]
        assert np.array_equal(decoded(datum), wanted)


async def test_bad_bodies_do_not_reach_the_engine() -> None:
    async with deployment("stages.image.options.max_pixels=1048576") as served:
        for what, (fields, param) in BAD.items():
            response = await served.client.post(GENERATIONS, json={"prompt": PROMPT, **fields})
            assert error_of(response, 404 if param == "model" else 400)["param"] is not None, what
        assert await served.counter("steps_total") == 0
        refused = await served.client.post(GENERATIONS, json={"prompt": f"{PROMPT} !refuse:image"})
        assert error_of(refused, 400)["param"] == "prompt"
        assert (await served.client.post(GENERATIONS, json={"prompt": PROMPT})).status_code == 200


async def test_clients_that_leave_stop_the_work() -> None:
    async with deployment("stages.image.options.step_s=0.01") as served:
        for stream in (True, False):
            with trio.move_on_after(0.3):
                body = {"prompt": PROMPT, "steps": 1000, "stream": stream, "preview_interval": 5 if stream else None}
                await served.client.post(GENERATIONS, json=body)
            with trio.fail_after(10):
                while await served.counter("running"):
                    await trio.sleep(0.005)
        assert await served.counter("steps_total") < 1000
        assert (await served.client.post(GENERATIONS, json={"prompt": PROMPT})).status_code == 200


async def test_a_reader_that_is_slow_gets_the_picture_whole_and_its_previews_in_order() -> None:
    async with deployment() as served:
        body = {"prompt": PROMPT, "size": "1024x1024", "stream": True, "preview_interval": 1, "steps": 12}
        text = ""
        async with served.client.stream("POST", GENERATIONS, json=body) as response:
            async for piece in response.aiter_text():
                text += piece
                with trio.fail_after(20):
                    while await served.counter("running"):  # the model is done long before the reader
                        await trio.sleep(0.005)
        events, _ = events_of(text)
        assert np.array_equal(decoded(events[-1]), painted(PROMPT, events[-1]["seed"], 1024, 1024))
        steps = [event["step"] for event in events[:-1]]
        assert steps == sorted(set(steps))
