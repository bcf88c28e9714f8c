"""Uploaded media are decoded by their bytes, or refused by name: never a 500."""

from __future__ import annotations

import httpx
import pytest
from tests.entrypoints.fakes import TEXT, Server, served
from tests.entrypoints.test_media import CHAT, body, data_url, movie, omni, sound
from tests.entrypoints.test_middleware import error_of
from tests.media.harness import container, silent_video, tone, wav

HEAR = "/v1/audio/transcriptions"
OPUS = container("webm", "libopus", tone(0.5, 48_000))
RECORDED = container("webm", "libopus", tone(0.5, 48_000), seekable=False, live="1")
"""As a browser's MediaRecorder writes it: no length, no index."""
M4A = container("ipod", "aac", tone(0.5, 48_000))

REFUSED = {
    "0 samples": (wav(b""), "audio/wav"),
    "nothing": (b"", "audio/wav"),
    "a video without sound": (silent_video(5), "video/mp4"),
    "a video without frames": (silent_video(0), "video/mp4"),
    "webm without sound": (RECORDED[:250], "audio/webm"),
    "webm with wrong first bytes": (b"\0\1\2\3" + OPUS[4:], "audio/webm"),
}

HEARD = {
    "1 sample": (wav(b"\x10\x20"), "audio/wav"),
    "MediaRecorder": (RECORDED, "audio/webm;codecs=opus"),
    "webm of a wrong type": (OPUS, "image/png"),
    "no type": (OPUS, ""),
    "audio/x-m4a": (M4A, "audio/x-m4a"),
    "octets": (M4A, "application/octet-stream"),
}


async def hear(server: Server, data: bytes, type: str) -> httpx.Response:
    return await server.client.post(HEAR, files={"file": ("blob", data, type)}, data={"model": "assistant"})


@pytest.mark.parametrize("name", REFUSED)
async def test_an_upload_that_is_no_sound(name: str) -> None:
    async with served() as server:
        error = error_of(await hear(server, *REFUSED[name]), 400)
        assert error["param"] == "file"
        assert len(error["message"]) < 300
        assert (await hear(server, *HEARD["1 sample"])).json()["text"] == TEXT
        await server.settled()


@pytest.mark.parametrize("name", HEARD)
async def test_an_upload_that_is_sound(name: str) -> None:
    async with served() as server:
        response = await hear(server, *HEARD[name])
        assert response.status_code == 200, response.text
        await server.settled()


@pytest.mark.parametrize("name", REFUSED)
async def test_a_part_that_is_no_sound(name: str) -> None:
    data, type = REFUSED[name]
    async with omni() as server:
        error = error_of(await server.post(CHAT, body(sound(data_url(data, type)))), 400)
        assert error["param"] == "messages[0].content[0].audio_url.url"
        await server.settled()


@pytest.mark.parametrize(
    "data", [b"", silent_video(0), wav(tone(0.1)), RECORDED], ids=["empty", "0 frames", "wav", "webm"]
)
async def test_a_part_that_is_no_video(data: bytes) -> None:
    async with omni() as server:
        error = error_of(await server.post(CHAT, body(movie(data_url(data, "video/mp4")))), 400)
        assert error["param"] == "messages[0].content[0].video_url.url"
        await server.settled()
