"""The seam to the server: what it says when it starts, and how it stops."""

from __future__ import annotations

import socket
from functools import partial

import httpx
import pytest
import trio
from tests.entrypoints.fakes import RATE, FakeOrchestrator, answer, message, served

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import Limits, serve
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta


async def test_a_request_in_flight_finishes_after_the_stop() -> None:
    go_on = trio.Event()
    async with served(lambda request: [TextDelta(0, 0, "x", []), go_on, Completed({})], grace_s=10) as server:
        async with trio.open_nursery() as nursery:
            answered = []

            async def ask() -> None:
                answered.append(await server.post("/v1/chat/completions", message()))

            nursery.start_soon(ask)
            with trio.fail_after(5):
                while not server.orchestrator.running:
                    await trio.sleep(0.005)
            server.stop.set()
            with trio.fail_after(5):  # until no new connection is taken
                while await _connects(server.url):
                    await trio.sleep(0.005)
            go_on.set()
        assert answered[0].status_code == 200


async def _connects(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        async with await trio.open_tcp_stream(host, int(port)):
            return True
    except OSError:
        return False


async def test_after_the_grace_requests_are_cancelled() -> None:
    never = trio.Event()
    async with served(lambda request: [TextDelta(0, 0, "x", []), never, Completed({})], grace_s=0.2) as server:
        with trio.fail_after(10):
            with pytest.raises(httpx.RemoteProtocolError):
                async with server.client.stream("POST", "/v1/chat/completions", json=message(stream=True)) as response:
                    server.stop.set()
                    async for _ in response.aiter_raw():
                        pass
            await server.orchestrator.idle.wait()
        assert server.orchestrator.cancelled == 1


async def test_a_stream_that_is_not_read_is_cancelled_and_its_slot_is_free() -> None:
    options = ServerOptions(limits=Limits(write_s=0.5))
    chunk = MediaChunk(0, "audio", {"sample_rate": RATE, "channels": 1}, bytes(1 << 20))
    async with served(lambda request: [chunk] * 40, options=options) as server:
        body = b'{"input":"Hello.","response_format":"pcm"}'
        host, port = server.url.removeprefix("http://").split(":")
        with trio.socket.socket() as client:
            client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
            await client.connect((host, int(port)))
            head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            await client.send(head + body)
            with trio.fail_after(10):
                while not server.orchestrator.requests:
                    await trio.sleep(0.01)
                await server.orchestrator.idle.wait()
        assert server.orchestrator.cancelled == 1


async def test_a_stream_is_not_cut_however_long_it_takes() -> None:
    """None of the times of a connection is one of an answer: it outlives all of them, with silences beyond each."""
    limits = Limits(head_s=0.2, keep_alive_s=0.2, write_s=0.2, linger_s=0.2, body_idle_s=0.2, body_s=0.2)
    options = ServerOptions(limits=limits)
    pieces = [step for number in range(4) for step in (TextDelta(0, 0, str(number), []), 0.4)]
    async with served(lambda request: [*pieces, Completed({})], options=options) as server:
        async with server.client.stream("POST", "/v1/chat/completions", json=message(stream=True)) as response:
            body = await response.aread()
        assert body.endswith(b"data: [DONE]\n\n")
        assert all(b'"content":"%d"' % number in body for number in range(4))


async def test_an_upload_of_17_mib() -> None:
    """Accepted or refused as the deployment says, and never cut."""
    for limit, status in ((1 << 24, 413), (1 << 25, 400)):  # (400: it is no audio)
        async with served(answer, f"limits.max_body_bytes={limit}") as server:
            files = {"file": ("a.wav", bytes(17 << 20), "audio/wav")}
            response = await server.client.post("/v1/audio/transcriptions", files=files, data={"model": "assistant"})
            assert response.status_code == status, response.text
            assert response.json()["error"]["message"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_it_says_where_it_listens(host: str) -> None:
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, _nothing, host, 0))
        assert await _connects_to(url)
        nursery.cancel_scope.cancel()


async def _connects_to(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with await trio.open_tcp_stream(host.strip("[]"), int(port)):
        return True


async def test_a_taken_address_is_an_oserror() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await serve(_nothing, "127.0.0.1", taken.getsockname()[1])


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise NotImplementedError("no lifespan, as ASGI has it; no request comes")


def test_the_fake_has_what_the_api_handlers_use() -> None:
    """The in-memory orchestrator of these tests fits where the real one does."""
    from omni_actors.entrypoints.orchestration import Orchestration
    from omni_actors.orchestrator import Orchestrator

    used = {name for name, it in vars(Orchestration).items() if not name.startswith("_") and callable(it)}
    assert used >= {"open", "health", "counters"}
    for kind in (FakeOrchestrator, Orchestrator):
        assert used <= set(dir(kind))
