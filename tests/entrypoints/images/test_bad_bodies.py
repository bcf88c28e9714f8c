"""Bodies that are wrong: a 400 that names the field, before the engine; and the next request works."""

from __future__ import annotations

from typing import Any

import pytest
from tests.entrypoints.images.painter import FACTS, GENERATIONS, painter
from tests.entrypoints.test_middleware import error_of

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no width": ({"size": "0x512"}, "size"),
    "no height": ({"size": "512x0"}, "size"),
    "a size between two": ({"size": "1021x1021"}, "size"),
    "a huge size": ({"size": "100000x10000"}, "size"),
    "a size beyond numbers": ({"size": "999999999x999999999"}, "size"),
    "one number": ({"size": "512"}, "size"),
    "a size in words": ({"size": "large"}, "size"),
    "a size below zero": ({"size": "-512x512"}, "size"),
    "a size that is a number": ({"size": 512}, "size"),
    "two sizes": ({"size": "512x512", "width": 512, "height": 512}, "size"),
    "a size and a width": ({"size": "512x512", "width": 512}, "size"),
    "a width alone": ({"width": 512}, "height"),
    "a height alone": ({"height": 512}, "width"),
    "a width of nothing": ({"width": 0, "height": 512}, "width"),
    "sides between two": ({"width": 1021, "height": 1021}, "width"),
    "too many pixels": ({"width": 4096, "height": 4096}, "width"),
    "no pictures": ({"n": 0}, "n"),
    "too many pictures": ({"n": 11}, "n"),
    "half a picture": ({"n": 1.5}, "n"),
    "no prompt": ({"prompt": None}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
    "a blank prompt": ({"prompt": " \n"}, "prompt"),
    "a prompt that is a list": ({"prompt": ["a boat"]}, "prompt"),
    "an endless prompt": ({"prompt": "a" * 32_001}, "prompt"),
    "another model": ({"model": "dall-e-3"}, "model"),
    "an unknown file format": ({"output_format": "gif"}, "output_format"),
    "an unknown response format": ({"response_format": "file"}, "response_format"),
    "an unknown background": ({"background": "green"}, "background"),
    "a transparent jpeg": ({"background": "transparent", "output_format": "jpeg"}, "background"),
    "a quality beyond all": ({"output_format": "webp", "output_compression": 101}, "output_compression"),
    "no steps": ({"num_inference_steps": 0}, "num_inference_steps"),
    "too many steps": ({"num_inference_steps": 1001}, "num_inference_steps"),
    "too many steps by the other name": ({"steps": 1001}, "steps"),
    "two numbers of steps": ({"steps": 4, "num_inference_steps": 5}, "steps"),
    "guidance below zero": ({"guidance_scale": -1}, "guidance_scale"),
    "guidance in words": ({"guidance_scale": "high"}, "guidance_scale"),
    "two guidances": ({"true_cfg_scale": 1, "cfg_scale": 2}, "cfg_scale"),
    "a seed below zero": ({"seed": -1}, "seed"),
    "a seed beyond 64 bits": ({"seed": 2**64}, "seed"),
    "a seed without room": ({"seed": 2**63 - 1, "n": 2}, "seed"),
    "no layers": ({"layers": 0}, "layers"),
    "an unknown adapter": ({"lora": "pencil"}, "lora"),
    "an adapter by path": ({"lora": {"name": "pen", "path": "/etc"}}, "lora.path"),
    "an adapter without a name": ({"loras": [{"scale": 1}]}, "loras[0].name"),
    "an adapter twice": ({"loras": ["pen", "pen"]}, "loras[1]"),
    "two lists of adapters": ({"lora": "pen", "loras": ["pen"]}, "lora"),
    "a cache in words": ({"cache": "fast"}, "cache"),
    "previews without a stream": ({"partial_images": 2}, "partial_images"),
    "too many previews": ({"stream": True, "partial_images": 4}, "partial_images"),
    "previews asked for twice": ({"stream": True, "partial_images": 2, "preview_interval": 2}, "preview_interval"),
    "a stream of URLs": ({"stream": True, "response_format": "url"}, "response_format"),
    "a style": ({"style": "vivid"}, "style"),
    "frames": ({"frame_count": 3}, "frame_count"),
    "a strength without a picture": ({"strength": 2}, "strength"),
    "an unknown field": ({"num_inference_step": 4}, "num_inference_step"),
    "no time": ({"timeout": 0}, "timeout"),
    "a priority out of range": ({"priority": 1000}, "priority"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_body_is_refused_by_name_and_the_next_one_works(what: str) -> None:
    fields, param = BAD[what]
    async with painter(facts=FACTS | {"loras": ("pen",)}) as server:
        error = error_of(
            await server.post(GENERATIONS, {"prompt": "a boat", **fields}), 400 if what != "another model" else 404
        )
        assert error["param"] == param
        assert server.orchestrator.requests == []
        assert (await server.post(GENERATIONS, {"prompt": "a boat"})).status_code == 200


@pytest.mark.parametrize(
    ("size", "nearest"),
    [("1021x1021", "1024x1024"), ("100000x10000", "3232x320"), ("0x512", "16x512"), ("33x17", "32x16")],
)
async def test_a_size_that_cannot_be_names_the_nearest_which_can(size: str, nearest: str) -> None:
    async with painter() as server:
        error = error_of(await server.post(GENERATIONS, {"prompt": "a boat", "size": size}), 400)
        assert nearest in error["message"]
        assert (await server.post(GENERATIONS, {"prompt": "a boat", "size": nearest})).status_code == 200


async def test_a_side_that_is_too_long_is_refused_though_the_pixels_are_few() -> None:
    async with painter(facts=FACTS | {"max_side": 256}) as server:
        error = error_of(await server.post(GENERATIONS, {"prompt": "a", "size": "512x64"}), 400)
        assert error["param"] == "size"
        assert "256x32" in error["message"]


async def test_an_unknown_field_names_the_nearest_which_is_known() -> None:
    async with painter() as server:
        error = error_of(await server.post(GENERATIONS, {"prompt": "a boat", "num_inference_step": 4}), 400)
        assert "'num_inference_steps'" in error["message"]


async def test_before_a_worker_has_reported_its_facts_only_what_is_wrong_for_all_is_refused() -> None:
    async with painter(facts={}) as server:
        assert error_of(await server.post(GENERATIONS, {"prompt": "a", "size": "0x512"}), 400)["param"] == "size"
        assert (await server.post(GENERATIONS, {"prompt": "a", "size": "1021x1021"})).status_code == 200
