"""The HTTP server inside a trio program."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
import trio

from omni_actors import OmniError, Sampling, ServerOptions, http_app, open_omni, serve_http

LOCAL = ServerOptions(port=0)


def ask(url: str, body: dict[str, Any] | None = None, key: str = "none") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", "authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.loads(reply.read())


async def test_one_deployment_answers_the_program_and_http_with_a_route_of_the_programs_own() -> None:
    async with open_omni("stub-voice", platform="cpu") as omni:
        app = http_app(omni, ServerOptions(port=0, api_keys=("secret",)))

        @app.quart.get("/mine")
        async def mine() -> dict[str, str]:
            return {"text": (await omni.chat("x", Sampling(max_tokens=3))).text}

        stopping = trio.Event()
        async with trio.open_nursery() as nursery:

            async def start(*, task_status: trio.TaskStatus[list[str]]) -> None:
                await serve_http(omni, app=app, shutdown=stopping.wait, task_status=task_status)

            (url,) = await nursery.start(start)
            body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
            answer = await trio.to_thread.run_sync(lambda: ask(f"{url}/v1/chat/completions", body, "secret"))
            own = await omni.chat("x", Sampling(max_tokens=3))
            assert answer["choices"][0]["message"]["content"] == own.text
            assert (await trio.to_thread.run_sync(lambda: ask(f"{url}/mine", key="secret")))["text"] == own.text
            with pytest.raises(urllib.error.HTTPError) as refused:
                await trio.to_thread.run_sync(ask, f"{url}/mine")
            assert refused.value.code == 401
            stopping.set()  # the server ends, the deployment goes on
        assert (await omni.chat("x", Sampling(max_tokens=3))).text == own.text


async def test_an_address_that_is_taken_is_a_clear_error_and_the_deployment_goes_on() -> None:
    async with open_omni("stub-voice", platform="cpu") as omni, trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve_http, omni, LOCAL)
        port = int(url.rpartition(":")[2])
        with pytest.raises(OmniError, match=str(port)):
            await serve_http(omni, ServerOptions(port=port))
        assert (await omni.chat("x", Sampling(max_tokens=1))).text
        nursery.cancel_scope.cancel()
