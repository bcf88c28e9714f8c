"""Families served with real workers: an edit under a mask over HTTP, and a model as three stages."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trio
from tests.media.pictures import png
from tests.media.writing.harness import pixels_of
from tests.models.diffusion.orders import drawn

from omni_actors import ServerOptions, http_app, open_omni, serve_http
from omni_actors.pipelines.factory import resolve

pytestmark = [pytest.mark.slow, pytest.mark.deadline(240)]


@asynccontextmanager
async def served(model: Path, *overrides: str, pipeline: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a served folder."""
    plan = resolve(str(model), overrides=overrides, pipeline=pipeline, platform="cpu")
    async with open_omni(plan) as omni, trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve_http, omni, app=http_app(omni, ServerOptions(port=0))))
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            yield client
        nursery.cancel_scope.cancel()


def picture(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    found: np.ndarray[Any, Any] = pixels_of(base64.b64decode(answer.json()["data"][0]["b64_json"]))
    return found


async def test_an_edit_changes_what_its_mask_lets_and_nothing_else(tiny_model: Callable[[str], Path]) -> None:
    options = [f"stages.image.options.{name}={64 * 64}" for name in ("picture_pixels", "seen_pixels")]
    before, mask = drawn(1, 64, 64), drawn(2, 64, 64, alpha=True)
    form = {"prompt": "a red house", "steps": "4", "seed": "3"}
    async with served(tiny_model("qwen-image-edit"), *options) as client:
        files = [("image", ("a.png", png(before), "image/png")), ("mask", ("m.png", png(mask), "image/png"))]
        after = picture(await client.post("/v1/images/edits", data=form, files=files))
        change = mask[..., 3] == 0
        assert after.shape == before.shape
        assert np.array_equal(after[~change], before[~change])
        assert (after[change] != before[change]).mean() > 0.5
        refused = await client.post("/v1/images/generations", json={"prompt": "a red house"})
        assert refused.status_code in (400, 404), refused.text


@pytest.mark.skipif("OMNI_ACTORS_LONG_TESTS" not in os.environ, reason="starts eight workers: 25 s of CPU")
async def test_three_stages_make_the_picture_of_one(tiny_model: Callable[[str], Path]) -> None:
    body = {"prompt": "a red house", "steps": 4, "seed": 5, "size": "64x64"}
    made = []
    for pipeline in (None, "stable-diffusion-3-apart"):
        async with served(tiny_model("sd3"), pipeline=pipeline) as client:
            made.append(picture(await client.post("/v1/images/generations", content=json.dumps(body))))
    whole, apart = made
    assert np.array_equal(whole, apart)
