"""Any ASGI application behind either server: lifespan, messages of HTTP and WebSockets, ends."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.entrypoints.server.door import UPGRADE, Door, frame, opened, request, socket_to, until, until_end

from omni_actors.entrypoints.server import hypercorn, serve
from omni_actors.entrypoints.server.listeners import tls_context
from omni_actors.telemetry.metrics import Metrics

SERVERS = {"builtin": serve, "hypercorn": hypercorn.serve}


class Asgi:
    """Says what it is asked, and notes what it sees."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.seen: list[Any] = []
        self.gone = trio.Event()

    async def asgi(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await getattr(self, scope["type"])(scope, receive, send)

    async def lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            message = await receive()
            self.seen.append(message["type"])
            if message["type"] == "lifespan.startup":
                scope["state"]["mark"] = "there"
            await send({"type": message["type"] + ".complete"})

    async def http(self, scope: Any, receive: Any, send: Any) -> None:
        more, body = True, b""
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        if scope["path"] == "/wait":
            try:
                await receive()
            finally:
                self.gone.set()
            return
        headers = [(b"Content-Type", b"text/plain")]
        if scope["path"] == "/known":
            headers.append((b"Content-Length", b"6"))
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        if scope["path"] == "/early":
            self.gone.set()
            await trio.sleep_forever()
        if scope["path"] == "/whole":
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "http.response.body", "body": b"abc", "more_body": True})
            await send({"type": "http.response.body", "body": b"def", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.seen.append((await receive())["type"])

    async def websocket(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(await receive())
        if scope["path"] == "/answered":
            head = {"type": "websocket.http.response.start", "status": 418, "headers": [(b"x-tea", b"1")]}
            await send(head)
            await send({"type": "websocket.http.response.body", "body": b"no ", "more_body": True})
            await send({"type": "websocket.http.response.body", "body": b"coffee"})
            return
        if scope["path"] == "/refused":
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept", "subprotocol": "two", "headers": [(b"x-more", b"1")]})
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.seen.append(message["code"])
                return
            if message.get("text") == "close":
                await send({"type": "websocket.close", "code": 4000, "reason": "enough"})
            elif message.get("text") is not None:
                await send({"type": "websocket.send", "text": message["text"]})
            else:
                await send({"type": "websocket.send", "bytes": message["bytes"]})


async def test_http() -> None:
    app = Asgi()
    async with opened(app) as door:
        async with await door.connect() as stream:
            await stream.send_all(request("/whole%20thing?a=b", b"body", "X-One: 1", "x-one: 2"))
            await until(stream, b"0\r\n\r\n")
            for path, end in (
                ("/whole", b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n"),
                ("/known", b"\r\n\r\nabcdef"),
                ("/open", b"\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"),
            ):
                await stream.send_all(request(path, b"body"))
                assert (await until(stream, end)).startswith(b"HTTP/1.1 201 ")
        scope = app.scopes[1]
        assert {
            name: scope[name] for name in ("type", "method", "path", "raw_path", "query_string", "http_version")
        } == {
            "type": "http",
            "method": "POST",
            "path": "/whole thing",
            "raw_path": b"/whole%20thing",
            "query_string": b"a=b",
            "http_version": "1.1",
        }
        assert [value for name, value in scope["headers"] if name == b"x-one"] == [b"1", b"2"]
        assert scope["client"][0] == "127.0.0.1"
        assert scope["server"] == door.address
        assert scope["scheme"] == "http"
        assert scope["state"] == {"mark": "there"}
        await door.settled()
        door.stop.set()
        with trio.fail_after(5):
            await door.over.wait()
    assert app.seen == ["lifespan.startup", *["http.disconnect"] * 4, "lifespan.shutdown"]


async def test_the_head_of_a_stream_does_not_wait_for_its_body() -> None:
    app = Asgi()
    async with opened(app) as door, await door.connect() as stream:
        await stream.send_all(request("/early"))
        assert (await until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        assert app.gone.is_set()


async def test_a_client_that_leaves_cancels_the_application() -> None:
    app = Asgi()
    async with opened(app) as door:
        stream = await door.connect()
        await stream.send_all(request("/wait"))
        await trio.sleep(0.05)
        assert not app.gone.is_set()
        await stream.aclose()
        with trio.fail_after(1):
            await app.gone.wait()


async def test_websocket() -> None:
    app = Asgi()
    async with opened(app) as door:
        offer = UPGRADE.replace(b"Host: x", b"Host: x\r\nSec-WebSocket-Protocol: one, two")
        async with await door.connect() as stream:
            await stream.send_all(offer + frame(1, b"hi") + frame(2, b"\x00") + frame(1, b"close"))
            answer = (await until(stream, b"enough")).lower()
            assert b"sec-websocket-protocol: two\r\n" in answer
            assert b"x-more: 1\r\n" in answer
            assert answer.endswith(b"\x81\x02hi\x82\x01\x00\x88\x08\x0f\xa0enough")
        await door.settled()
        async with socket_to(door) as client:
            await client.send(frame(8, b"\x03\xe8"))
            assert await client.code() == 1000
        for path, status, end in ((b"/answered", 418, b"\r\n\r\nno coffee"), (b"/refused", 403, b"\r\n\r\n")):
            answer = await door.say(UPGRADE.replace(b"/socket", path))
            assert answer.startswith(b"HTTP/1.1 %d " % status)
            assert answer.endswith(end)
        scope = app.scopes[1]
        assert (scope["type"], scope["scheme"], scope["path"]) == ("websocket", "ws", "/socket")
        assert scope["subprotocols"] == ["one", "two"]
        assert {"type": "websocket.connect"} in app.seen
        assert 1000 in app.seen


async def test_an_application_that_cannot_start() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no disk"})

    with pytest.raises(BaseExceptionGroup) as failed:
        await serve(app, "127.0.0.1", 0)
    assert failed.group_contains(RuntimeError, match="no disk")


@pytest.mark.parametrize("server", SERVERS)
async def test_both_servers_keep_one_contract(server: str, tmp_path: Path, certificate: Path) -> None:
    """URLs, unix sockets, TLS, a stop that lets an answer end, a taken address."""
    trust = ssl.create_default_context(cafile=certificate)
    once = request("/whole", b"body", "Connection: close")
    for where in ("tcp", "unix", "tls"):
        stop, over = trio.Event(), trio.Event()
        path = str(tmp_path / "door") if where == "unix" else None
        tls = tls_context(str(certificate), None) if where == "tls" else None
        run = partial(SERVERS[server], Asgi().asgi, "127.0.0.1", 0, unix_path=path, tls=tls, shutdown=stop.wait)

        async def go(run: Any = run, over: trio.Event = over, *, task_status: trio.TaskStatus[list[str]]) -> None:
            await run(task_status=task_status)
            over.set()

        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(go)
            stream: trio.abc.Stream
            if path is not None:
                assert url == f"unix:{path}"
                stream = await trio.open_unix_socket(path)
            else:
                assert url.startswith("https://127.0.0.1:" if tls else "http://127.0.0.1:")
                stream = await Door(url, Metrics()).connect()
                if tls is not None:
                    stream = trio.SSLStream(stream, trust, server_hostname="localhost", https_compatible=True)
            await stream.send_all(once)
            assert b"body" in await until_end(stream)
            await stream.aclose()
            if path is None:
                with pytest.raises((OSError, BaseExceptionGroup)):
                    await SERVERS[server](Asgi().asgi, "127.0.0.1", int(url.rpartition(":")[2]))
            stop.set()
            with trio.fail_after(5):
                await over.wait()
