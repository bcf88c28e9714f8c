"""The application's routes: those of this project on their exchange, an embedder's through Quart, behind one guard and
under either server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
import trio
from quart import Response, request, websocket
from tests.entrypoints.fakes import PIPELINE, FakeOrchestrator, message, served
from tests.pipelines.builders import plan_of
from websockets.exceptions import InvalidStatus
from websockets.trio.client import connect

from omni_actors.entrypoints.app import Application, build_app
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import hypercorn, serve
from omni_actors.protocol.errors import overloaded

SERVERS = ["builtin", "hypercorn"]


@asynccontextmanager
async def embedded(server: str, options: ServerOptions | None = None) -> AsyncIterator[tuple[Application, str]]:
    """An application with routes of an embedder's, and its URL."""
    plan = plan_of(PIPELINE, "limits.max_body_bytes=1000000")
    app = build_app(FakeOrchestrator(plan), None, plan, options)

    @app.quart.post("/own/echo")
    async def echo() -> Response:
        return Response(await request.get_data(), content_type="application/octet-stream")

    @app.quart.get("/own/stream")
    async def stream() -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in (b"a", b"b"):
                yield piece

        return Response(pieces(), content_type="text/plain")

    @app.quart.get("/own/refused")
    async def refused() -> Response:
        raise overloaded("Come back later.")

    @app.quart.get("/own/broken")
    async def broken() -> Response:
        raise RuntimeError("secret detail")

    @app.quart.websocket("/own/socket")
    async def socket() -> None:
        while True:
            await websocket.send(await websocket.receive())

    run = serve if server == "builtin" else hypercorn.serve
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(run, app, "127.0.0.1", 0, grace_s=1))
        yield app, url
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("server", SERVERS)
async def test_an_embedders_routes_stand_behind_the_guard(server: str) -> None:
    options = ServerOptions(api_keys=("key",))
    headers = {"Authorization": "Bearer key", "X-Request-Id": "mine", "Origin": "https://app.example"}
    async with embedded(server, options) as (_, url), httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/own/echo", content=b"x")).status_code == 401
        client.headers.update(headers)
        for size in (0, 1, 100_000):
            echoed = await client.post("/own//echo/", content=bytes(size))
            assert (echoed.status_code, len(echoed.content)) == (200, size)
            assert echoed.headers["x-request-id"] == "mine"
            assert echoed.headers["access-control-allow-origin"] == "*"
        assert (await client.post("/own/echo", content=bytes(1_000_001))).status_code == 413
        assert (await client.get("/own/stream")).content == b"ab"
        refused = await client.get("/own/refused")
        assert (refused.status_code, refused.json()["error"]["message"]) == (429, "Come back later.")
        broken = await client.get("/own/broken")
        assert broken.status_code == 500
        assert "secret" not in broken.text
        scraped = (await client.get("/metrics")).text
        assert 'route="unmatched"' in scraped  # labels are this project's own routes
        assert "/own/" not in scraped


@pytest.mark.parametrize("server", SERVERS)
async def test_an_embedders_body_that_is_too_long_by_count_is_413(server: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(100_000)

    async with embedded(server) as (_, url), httpx.AsyncClient(base_url=url) as client:
        assert (await client.post("/own/echo", content=pieces())).status_code == 413
        assert (await client.get("/live")).status_code == 200


@pytest.mark.parametrize("server", SERVERS)
async def test_an_embedders_websocket(server: str) -> None:
    async with embedded(server, ServerOptions(api_keys=("key",))) as (_, url):
        assert await _over_websocket(url, "/own/socket", "key") == b"hello"
        assert await _over_websocket(url, "/own/socket", "wrong") == 401
        assert await _over_websocket(url, "/v1/nothing", "key") == 404


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("empty", [b"", ""])
async def test_an_embedders_websocket_receives_empty_messages_too(server: str, empty: bytes | str) -> None:
    async with embedded(server) as (_, url):
        with trio.fail_after(5):
            async with connect(f"ws{url.removeprefix('http')}/own/socket") as socket:
                for message in (empty, b"x", empty):
                    await socket.send(message)
                    assert await socket.recv() == message


async def _over_websocket(url: str, path: str, key: str) -> object:
    """What comes back of a message, or the status of the refusal."""
    headers = {"Authorization": f"Bearer {key}"}
    with trio.fail_after(5):
        try:
            async with connect(f"ws{url.removeprefix('http')}{path}", additional_headers=headers) as socket:
                await socket.send(b"hello")
                return await socket.recv()
        except InvalidStatus as refused:
            return refused.response.status_code


@pytest.mark.parametrize("server", SERVERS)
async def test_a_streamed_answer_is_the_same_under_either_server(server: str) -> None:
    async with served(options=ServerOptions(server=server)) as running:  # type: ignore[arg-type]
        response = await running.post("/v1/chat/completions", message(stream=True))
        events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
        assert "".join(deltas) == "Paris is the capital of France."
        await running.settled()


@pytest.mark.parametrize("server", SERVERS)
async def test_a_client_that_leaves_cancels_the_handler(server: str) -> None:
    never = trio.Event()
    async with served(lambda request: [never], options=ServerOptions(server=server)) as running:  # type: ignore[arg-type]
        with trio.move_on_after(0.3):
            await running.post("/v1/chat/completions", message())
        with trio.fail_after(5):
            await running.orchestrator.idle.wait()
        assert running.orchestrator.cancelled == 1
