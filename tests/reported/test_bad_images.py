"""An image that cannot be decoded is a 400 that names its part; an image that claims to be huge costs no memory."""

from __future__ import annotations

import base64
import resource
from typing import Any

import pytest
from PIL import Image
from tests.entrypoints.test_media import CHAT, body, data_url, image, omni, said
from tests.entrypoints.test_middleware import error_of
from tests.media.pictures import encoded, huge_png, noise, png

URL = "messages[0].content[1].image_url.url"
JPEG = encoded(Image.fromarray(noise(200, 200)), "JPEG")
PNG = base64.b64encode(png(noise(8, 8))).decode()

BAD = {
    "truncated JPEG": data_url(JPEG[:2000], "image/jpeg"),
    "only a JPEG's head": data_url(JPEG[:20], "image/jpeg"),
    "data: without a comma": "data:image/png;base64",
    "data: alone": "data:",
    "bad base64": "data:image/png;base64,!!!!",
    "half a base64 group": "data:image/png;base64,iVBORw0KGgoA=A",
    "empty": "data:image/png;base64,",
    "a text file": data_url(b"hello, I am a text", "image/png"),
    "12000 x 12000": data_url(huge_png(12_000, 12_000), "image/png"),
}


@pytest.mark.parametrize("name", BAD)
async def test_it_is_refused_and_the_next_one_served(name: str) -> None:
    async with omni() as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for more in ({}, {"stream": True}):
            error = error_of(await server.post(CHAT, body(said("What is it?"), image(BAD[name]), **more)), 400)
            assert error["param"] == URL
            assert len(error["message"]) < 300, "one line, and no base64"
        if "x" in name:
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 100 << 10, f"{grown} KiB for an image that is refused by its header"
        good = await server.post(CHAT, body(said("And this?"), image(f"data:image/png;base64,{PNG}")))
        assert good.status_code == 200
        await server.settled()


@pytest.mark.parametrize("head", ["data:image/png;param=1;base64,", "data:image/png;charset=utf-8;base64,"])
async def test_a_parameter_before_base64_is_accepted(head: str) -> None:
    async with omni() as server:
        assert (await server.post(CHAT, body(said("What is it?"), image(head + PNG)))).status_code == 200
        await server.settled()


async def test_good_and_bad_in_one_body_is_one_bad_request() -> None:
    parts: list[dict[str, Any]] = [image(f"data:image/png;base64,{PNG}"), image(BAD["truncated JPEG"])]
    async with omni() as server:
        assert error_of(await server.post(CHAT, body(*parts)), 400)["param"] == URL
        await server.settled()
