"""Pictures by URL: the store, and the route that gives them."""

from __future__ import annotations

import httpx
import pytest
from tests.entrypoints.images.painter import GENERATIONS, SEED, paint, painter, picture
from tests.entrypoints.test_middleware import error_of

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.picture_files import FILES, PictureFiles
from omni_actors.protocol.errors import OmniError

KEY = {"Authorization": "Bearer a-long-random-text"}


def test_a_kept_picture_is_given_again_and_again() -> None:
    files = PictureFiles(100, 60.0, lambda: 0.0)
    token = files.put(b"abc", "png")
    kept = files.get(token)
    assert kept is not None
    assert (kept.data, kept.format) == (b"abc", "png")
    assert files.get(token) is kept
    assert files.get(token[:-1]) is None


def test_a_picture_is_gone_after_its_time_and_its_bytes_with_it() -> None:
    now = 0.0
    files = PictureFiles(100, 60.0, lambda: now)
    first = files.put(b"a" * 40, "png")
    now = 59.0
    second = files.put(b"b" * 40, "png")
    assert files.get(first) is not None
    now = 60.0
    assert files.get(first) is None
    assert files.get(second) is not None
    assert (files.bytes, len(files)) == (40, 1)


def test_the_oldest_makes_room_for_a_new_one() -> None:
    files = PictureFiles(100, 60.0, lambda: 0.0)
    tokens = [files.put(bytes(40), "png") for _ in range(5)]
    assert [files.get(token) is not None for token in tokens] == [False, False, False, True, True]
    assert files.bytes == 80


def test_a_picture_larger_than_all_may_be_is_refused_and_pushes_none_out() -> None:
    files = PictureFiles(100, 60.0, lambda: 0.0)
    token = files.put(b"abc", "png")
    with pytest.raises(OmniError) as refused:
        files.put(bytes(101), "png")
    assert refused.value.info.status == 413
    assert files.get(token) is not None


def test_tokens_cannot_be_guessed() -> None:
    files = PictureFiles(10_000, 60.0, lambda: 0.0)
    tokens = {files.put(b"x", "png") for _ in range(1000)}
    assert len(tokens) == 1000
    assert min(map(len, tokens)) >= 43


async def test_a_url_opens_its_picture_without_a_key_and_nothing_else() -> None:
    async with painter(options=ServerOptions(api_keys=("a-long-random-text",))) as server:
        body = {"prompt": "a boat", "response_format": "url"}
        response = await server.post(GENERATIONS, body, headers=KEY)
        (datum,) = response.json()["data"]
        assert set(datum) == {"url", "seed"}
        assert datum["url"].startswith(f"{server.url}{FILES}")
        got = await server.client.get(datum["url"])
        assert got.status_code == 200
        assert got.content == picture(64, 48, SEED)
        assert got.headers["content-type"] == "image/png"
        assert got.headers["cache-control"] == "private, no-store"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert (await server.client.head(datum["url"])).headers["content-length"] == str(len(got.content))
        assert error_of(await server.client.get(datum["url"][:-1]), 404)["code"] == "picture_not_found"
        error_of(await server.client.post(datum["url"]), 405)
        error_of(await server.get(f"{FILES}x/../../../v1/models"), 401)


async def test_the_url_is_the_one_by_which_the_client_came() -> None:
    async with painter() as server:
        headers = {"Host": "pictures.example", "X-Forwarded-Proto": "https"}
        body = {"prompt": "a boat", "response_format": "url"}
        (datum,) = (await server.post(GENERATIONS, body, headers=headers)).json()["data"]
        assert httpx.URL(datum["url"]).host == "pictures.example"
        assert httpx.URL(datum["url"]).scheme == "https"


async def test_a_server_that_keeps_no_pictures_says_so_before_it_makes_one() -> None:
    async with painter(paint, "limits.picture_files_bytes=0") as server:
        body = {"prompt": "a boat", "response_format": "url"}
        assert error_of(await server.post(GENERATIONS, body), 400)["param"] == "response_format"
        assert server.orchestrator.requests == []
