"""Behind nginx as it is configured by default: the admin routes are closed, and streams arrive as they are made."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from tests.entrypoints.admin.test_access import ADMIN_ROUTES, NGINX
from tests.entrypoints.fakes import RATE, Step, message, served
from tests.harness.ports import free_port

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.protocol.request import Completed, MediaChunk, Request, TextDelta

CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {upstream}; }} }}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, upstream: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an nginx of this user, with one plain ``proxy_pass``."""
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, upstream=upstream))
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
            with trio.fail_after(10):
                while True:
                    try:
                        (await client.get("/live")).raise_for_status()
                        break
                    except httpx.TransportError:
                        assert process.poll() is None, (folder / "error.log").read_text()
                        await trio.sleep(0.02)
            yield client
    finally:
        process.terminate()
        process.wait(10)


async def test_the_admin_routes_are_closed_over_tcp_and_over_a_unix_socket_of_the_servers_own_user(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "door")
    for options in (ServerOptions(admin_keys=("boss",)), ServerOptions(admin_keys=("boss",), unix_path=path)):
        async with served(options=options) as server:
            upstream = server.url if options.unix_path is None else f"http://{server.url}:"
            async with nginx(tmp_path, upstream) as client:
                assert (await client.get("/v1/models")).status_code == 200
                for method, route in ADMIN_ROUTES:
                    for headers in ({}, {"Host": "localhost"}, {"Host": "127.0.0.1"}):
                        assert (await client.request(method, route, headers=headers)).status_code == 401
                    key = {"Authorization": "Bearer boss"}
                    assert (await client.request(method, route, headers=key)).status_code in (200, 415)


async def test_what_the_suite_takes_for_its_bytes_are_its_bytes(tmp_path: Path) -> None:
    """So that the tests without nginx test what it sends."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    heard: list[bytes] = []

    async def answer(stream: trio.SocketStream) -> None:
        heard.append(await stream.receive_some())
        await stream.send_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        async with nginx(tmp_path, f"http://{host}") as client:
            agent = {"User-Agent": "curl/7.88.1", "Accept": "*/*"}
            request = client.build_request("GET", "/admin/replicas", headers=agent)
            del request.headers["accept-encoding"], request.headers["connection"]
            await client.send(request)
        nursery.cancel_scope.cancel()
    assert heard[-1].decode() == NGINX.format("GET", "/admin/replicas", host)


@pytest.mark.parametrize("way", ["chat", "speech", "speech events"])
async def test_streams_arrive_as_they_are_made(way: str, tmp_path: Path) -> None:
    """The model goes on only when its first words (or sounds) have been seen on the other side of nginx."""
    seen = trio.Event()

    def script(request: Request) -> list[Step]:
        meta = {"sample_rate": RATE, "channels": 1}
        if request.task == "speech":
            return [
                MediaChunk(0, "audio", meta, bytes(480)),
                seen,
                MediaChunk(0, "audio", meta, bytes(480)),
                Completed({}),
            ]
        return [TextDelta(0, 0, "first", [1]), seen, TextDelta(0, 0, " last", [2], "stop"), Completed({})]

    async with served(script) as server, nginx(tmp_path, server.url) as client:
        speech = {"input": "Hello.", "voice": "heart", "response_format": "pcm"}
        asked = {
            "chat": ("/v1/chat/completions", message(stream=True), b"first", b"[DONE]"),
            "speech": ("/v1/audio/speech", speech, bytes(480), bytes(960)),
            "speech events": ("/v1/audio/speech", speech | {"stream_format": "sse"}, b"audio.delta", b"audio.done"),
        }
        path, body, begins, ends = asked[way]
        received = b""
        with trio.fail_after(10):
            async with client.stream("POST", path, json=body) as response:
                assert response.status_code == 200
                async for piece in response.aiter_bytes():
                    received += piece
                    if begins in received:
                        seen.set()
        assert ends in received
        await server.settled()


async def test_every_stream_asks_a_proxy_not_to_hold_it_back() -> None:
    speech = {"input": "Hello.", "voice": "heart"}
    async with served() as server:
        for path, body in (
            ("/v1/chat/completions", message(stream=True)),
            ("/v1/completions", {"prompt": "a", "stream": True}),
            ("/v1/audio/speech", speech),
            ("/v1/audio/speech", speech | {"stream_format": "sse"}),
        ):
            assert (await server.post(path, body)).headers["x-accel-buffering"] == "no", path
