"""The unmodified openai SDK: everything that it gets of pictures parses into its typed models."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import (
    ImageEditCompletedEvent,
    ImageEditPartialImageEvent,
    ImageGenCompletedEvent,
    ImageGenPartialImageEvent,
)
from tests.entrypoints.images.painter import SEED, painter, picture, seen
from tests.entrypoints.images.test_edits import hole
from tests.entrypoints.sdk import asynchronous, blocking, strict


async def test_generate() -> None:
    async with painter() as server:
        answer = strict(
            await blocking(
                server.url,
                lambda it: it.images.generate(
                    model="painter",
                    prompt="a boat",
                    n=2,
                    size="256x256",
                    quality="high",
                    moderation="low",
                    background="opaque",
                    output_format="webp",
                    output_compression=80,
                    user="me",
                    extra_body={"negative_prompt": "fog", "num_inference_steps": 4, "seed": 9},
                ),
            )
        )
        assert [base64.b64decode(it.b64_json) for it in answer.data] == [picture(256, 256, 9), picture(256, 256, 10)]
        assert (answer.size, answer.output_format, answer.background) == ("256x256", "webp", "opaque")
        assert answer.usage.output_tokens == 2 * 256
        assert answer.data[1].seed == 10


async def test_generate_by_url() -> None:
    async with painter() as server:
        answer = strict(
            await blocking(server.url, lambda it: it.images.generate(prompt="a boat", response_format="url"))
        )
        assert (await server.client.get(answer.data[0].url)).content == picture(64, 48, SEED)


async def test_streamed_partial_images() -> None:
    async with painter() as server:

        def use(client: OpenAI) -> list[Any]:
            stream = client.images.generate(prompt="a boat", stream=True, partial_images=2)
            return list(stream)

        events = strict(await blocking(server.url, use))
        assert [type(event) for event in events] == [ImageGenPartialImageEvent] * 2 + [ImageGenCompletedEvent]
        assert [event.partial_image_index for event in events[:2]] == [0, 1]
        assert base64.b64decode(events[-1].b64_json) == picture(64, 48, SEED)
        assert events[-1].usage.total_tokens == 17


async def test_streamed_on_asyncio() -> None:
    async with painter() as server:

        async def use(client: AsyncOpenAI) -> list[Any]:
            stream = await client.images.generate(prompt="a boat", stream=True, partial_images=1, n=2)
            return [event async for event in stream]

        events = strict(await asynchronous(server.url, use))
        assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "completed"] * 2


async def test_edit_with_three_images_and_a_mask() -> None:
    async with painter() as server:

        def use(client: OpenAI) -> Any:
            pictures = [("a.png", picture(32, 16, it), "image/png") for it in range(3)]
            return client.images.edit(
                model="painter",
                image=pictures,
                mask=("mask.png", hole(32, 16), "image/png"),
                prompt="make it blue",
                n=1,
                size="64x64",
                input_fidelity="high",
                extra_body={"strength": 0.5},
            )

        answer = strict(await blocking(server.url, use))
        assert base64.b64decode(answer.data[0].b64_json) == picture(64, 64, SEED)
        (request,) = server.orchestrator.requests
        assert (seen(request).pictures, seen(request).mask, seen(request).strength) == (3, True, 0.5)
        await server.settled()


async def test_streamed_edit() -> None:
    async with painter() as server:

        def use(client: OpenAI) -> list[Any]:
            file = ("a.png", picture(32, 16, 1), "image/png")
            return list(client.images.edit(image=file, prompt="blue", stream=True, partial_images=1))

        events = strict(await blocking(server.url, use))
        assert [type(event) for event in events] == [ImageEditPartialImageEvent, ImageEditCompletedEvent]


async def test_chat_with_a_picture() -> None:
    async with painter() as server:

        def use(client: OpenAI) -> Any:
            return client.chat.completions.create(
                model="painter",
                messages=[{"role": "user", "content": "a boat"}],
                extra_body={"modalities": ["image"], "size": "64x64"},
            )

        answer = strict(await blocking(server.url, use))
        url = answer.choices[0].message.images[0]["image_url"]["url"]
        assert base64.b64decode(url.partition(",")[2]) == picture(64, 64, SEED)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_what_is_refused_is_an_error_of_the_sdk() -> None:
    async with painter() as server:
        with pytest.raises(openai.BadRequestError) as refused:
            await blocking(server.url, lambda it: it.images.generate(prompt="a boat", size="1021x1021"))
        assert refused.value.param == "size"
        with pytest.raises(openai.NotFoundError):
            await blocking(server.url, lambda it: it.images.create_variation(image=b"x"))
