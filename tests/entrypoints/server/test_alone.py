"""The HTTP server without the rest of the package: one handler, one error format of the program's own."""

from __future__ import annotations

import json
import subprocess
import sys

import trio

from omni_actors.entrypoints.server import Exchange, WebSocket, serve


class Greeter:
    """An application that greets over HTTP, fails on ``/fail``, and echoes over a WebSocket."""

    async def http(self, exchange: Exchange) -> None:
        if exchange.path == "/fail":
            raise RuntimeError("planted")
        await exchange.respond(200, [(b"content-type", b"text/plain")], b"hello " + exchange.path.encode())

    async def websocket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send(await socket.receive())

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        raise NotImplementedError("no lifespan")


async def ask(url: str, request: bytes) -> bytes:
    host, _, port = url.partition("://")[2].rpartition(":")
    answer = b""
    with trio.fail_after(5):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request)
            while part := await stream.receive_some():
                answer += part
    return answer


def plain(status: int, message: str) -> bytes:
    return b'["%d", "%s"]' % (status, message.encode())


async def test_a_program_serves_its_own_handler_and_error_format() -> None:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve(Greeter(), "127.0.0.1", 0, error_body=plain, task_status=task_status)

        (url,) = await nursery.start(run)
        good = await ask(url, b"GET /you HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        failed = await ask(url, b"GET /fail HTTP/1.1\r\nhost: x\r\n\r\n")
        malformed = await ask(url, b"GET / HTTP/3.7\r\nhost: x\r\n\r\n")
        nursery.cancel_scope.cancel()
    assert good.startswith(b"HTTP/1.1 200 ")
    assert good.endswith(b"hello /you")
    assert failed.startswith(b"HTTP/1.1 500 ")
    assert failed.endswith(b'["500", "Internal error."]')
    assert malformed.startswith(b"HTTP/1.1 4")
    assert b'\r\n\r\n["4' in malformed


def test_the_server_imports_no_other_package_of_this_project() -> None:
    code = (
        "import json, sys, omni_actors.entrypoints.server\n"
        "ours = {'.'.join(name.split('.')[:3]) for name in sys.modules if name.startswith('omni_actors.')}\n"
        "print(json.dumps(sorted(ours)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    imported = set(json.loads(found.stdout))
    assert imported <= {"omni_actors.version", "omni_actors.entrypoints", "omni_actors.entrypoints.server"}, imported
