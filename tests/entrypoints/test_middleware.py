"""What stands before every route: keys, origins, limits, ids, deadlines, paths, and JSON whatever goes wrong."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx
import pytest
import trio
from tests.entrypoints.fakes import TEXT_ONLY, Server, answer, message, served

from omni_actors.entrypoints.admin.replicas import MAX_COMMAND
from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import Limits

KEYED = ServerOptions(api_keys=("first-key", "second-key"))
ORIGIN = {"Origin": "https://app.example"}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which has OpenAI's four keys and nothing more, and an id."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    (key,) = response.json()
    assert key == "error"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return error


async def raw(server: Server, data: bytes, *pieces: bytes, then: float = 0.0) -> bytes:
    """What the server says to bytes on a connection, until it closes it (or 10 s)."""
    host, port = server.url.removeprefix("http://").split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(data)
        for piece in pieces:
            await stream.send_all(piece)
        received = b""
        with trio.move_on_after(10):
            while part := await stream.receive_some():
                received += part
        return received


@pytest.mark.parametrize("key", [None, "Bearer", "Bearer wrong", "Bearer first-ke", "Basic first-key", "first-key"])
async def test_without_a_valid_key_401(key: str | None) -> None:
    async with served(options=KEYED) as server:
        headers = {} if key is None else {"Authorization": key}
        error = error_of(await server.post("/v1/chat/completions", message(), headers=headers), 401)
        assert error["code"] == "invalid_api_key"
        assert not server.orchestrator.requests
        for path in ("/v1/models", "/v1/nothing", "/elsewhere"):
            error_of(await server.get(path, headers=headers), 401)


@pytest.mark.parametrize("key", KEYED.api_keys)
async def test_each_key_opens(key: str) -> None:
    async with served(options=KEYED) as server:
        headers = {"Authorization": f"Bearer {key}"}
        assert (await server.post("/v1/chat/completions", message(), headers=headers)).status_code == 200


async def test_probes_need_no_key() -> None:
    async with served(options=KEYED) as server:
        for path in ("/live", "/ready", "/health", "/version", "/metrics"):
            assert (await server.get(path)).status_code == 200


async def test_a_browser_may_ask_first() -> None:
    """The preflight has no key, and names the very headers that it will send."""
    async with served(options=KEYED) as server:
        asked = "authorization, content-type, x-stainless-os"
        headers = {**ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        allowed = await server.client.options("/v1/audio/speech", headers=headers)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == "*"
        assert allowed.headers["access-control-allow-headers"] == asked
        assert "POST" in allowed.headers["access-control-allow-methods"]


async def test_errors_are_readable_across_origins() -> None:
    async with served(options=KEYED) as server:
        for response in (
            await server.get("/v1/models", headers=ORIGIN),
            await server.get("/live", headers=ORIGIN),
            await server.get("/nowhere", headers={**ORIGIN, "Authorization": "Bearer first-key"}),
        ):
            assert response.headers["access-control-allow-origin"] == "*"
            assert "X-Request-Id" in response.headers["access-control-expose-headers"]


async def test_only_listed_origins() -> None:
    async with served(options=ServerOptions(cors_origins=("https://app.example",))) as server:
        good = await server.get("/live", headers=ORIGIN)
        assert good.headers["access-control-allow-origin"] == "https://app.example"
        assert good.headers["vary"] == "Origin"
        bad = await server.get("/live", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in bad.headers
    async with served(options=ServerOptions(cors_origins=())) as server:
        assert "access-control-allow-origin" not in (await server.get("/live", headers=ORIGIN)).headers


async def test_a_body_over_the_limit_is_413_in_json() -> None:
    """By its declared length and by what really comes; also to a browser."""
    async with served(answer, "limits.max_body_bytes=100000") as server:
        big = json.dumps(message("x" * 200_000)).encode()

        async def chunked() -> Any:
            for at in range(0, len(big), 10_000):
                yield big[at : at + 10_000]

        for content in (big, chunked()):
            response = await server.client.post("/v1/chat/completions", content=content, headers=ORIGIN)
            assert error_of(response, 413)["code"] == "too_large"
            assert response.headers["access-control-allow-origin"] == "*"
        assert not server.orchestrator.requests
        assert (await server.post("/v1/chat/completions", message())).status_code == 200


async def test_a_refused_body_is_not_waited_for_when_its_sender_waits() -> None:
    """``Expect: 100-continue``: the refusal does not wait for the body."""
    async with served(answer, "limits.max_body_bytes=1000") as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n"
        began = time.monotonic()
        received = await raw(server, head)
        assert b"HTTP/1.1 413" in received
        assert time.monotonic() - began < 3


async def test_a_refusal_over_http2_does_not_come_before_the_body() -> None:
    """Whatever the client says of waiting: data behind an answer would end Hypercorn, and with it the server."""
    hypercorn = ServerOptions(server="hypercorn")
    async with served(answer, "limits.max_body_bytes=1000", options=hypercorn) as server:
        async with httpx.AsyncClient(base_url=server.url, http1=False, http2=True, timeout=10) as client:
            headers = {"Expect": "100-continue"}
            response = await client.post("/v1/completions", content=bytes(300_000), headers=headers)
            assert response.http_version == "HTTP/2"
            error_of(response, 413)
        assert (await server.get("/live")).status_code == 200


async def test_a_body_that_stalls_is_408() -> None:
    async with served(options=ServerOptions(limits=Limits(body_idle_s=0.2))) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\nConnection: close\r\n\r\n"
        received = await raw(server, head, b'{"prompt":')
        assert received.startswith(b"HTTP/1.1 408")
        assert b'"deadline_exceeded"' in received


@pytest.mark.parametrize("seconds", ["0.0000001", "0.3"])
async def test_a_deadline_that_passes_with_the_body_under_way_is_408(seconds: str) -> None:
    """Also when it has passed already before the guard looks at the body (again)."""
    async with served() as server:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\nConnection: close\r\n"
        received = await raw(server, head + b"X-Request-Timeout: %s\r\n\r\n" % seconds.encode(), b'{"prompt":')
        assert received.startswith(b"HTTP/1.1 408")
        assert not server.orchestrator.requests


async def body_in_pieces(server: Server, piece: bytes, number: int, seconds: float) -> bytes:
    """The first of what comes back to a body of 5 MB that is sent so; to all of it, when it ends with its pieces."""
    host, port = server.url.removeprefix("http://").split(":")
    size = len(piece) * number if number else 5_000_000
    async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
        await stream.send_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)

        async def drip() -> None:
            sent = 0
            while not number or sent < number:
                await stream.send_all(piece)
                sent += 1
                await trio.sleep(seconds)

        nursery.start_soon(drip)
        with trio.fail_after(8):
            answer = bytes(await stream.receive_some())
        nursery.cancel_scope.cancel()
    return answer


@pytest.mark.parametrize("limits", [Limits(body_s=0.3), Limits(body_idle_s=0.3, body_rate=1000)], ids=["time", "rate"])
async def test_a_body_that_never_stalls_and_never_ends_is_408(limits: Limits) -> None:
    async with served(options=ServerOptions(limits=limits)) as server:
        assert b" 408" in (await body_in_pieces(server, b" ", 0, 0.02))[:16]


async def test_a_body_that_keeps_the_least_rate_may_take_longer_than_its_patience() -> None:
    """In pieces that are each late for the rate by less than that; its last one makes it a 400."""
    async with served(options=ServerOptions(limits=Limits(body_idle_s=0.4, body_rate=1000))) as server:
        assert (await body_in_pieces(server, b" " * 400, 4, 0.3)).startswith(b"HTTP/1.1 400")


async def test_unknown_routes_and_methods() -> None:
    async with served() as server:
        assert error_of(await server.get("/v1/nothing"), 404)["code"] == "not_found"
        response = await server.get("/v1/chat/completions")
        assert error_of(response, 405)["code"] == "method_not_allowed"
        assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("path", ["/v1//audio/speech", "//v1/audio/speech/", "/v1/audio/speech/"])
async def test_doubled_and_trailing_slashes(path: str) -> None:
    async with served() as server:
        assert (await server.post(f"{server.url}{path}", {"input": "Hello."})).status_code == 200


async def test_the_callers_id_is_echoed_and_is_only_a_label() -> None:
    """Two requests at once with one id are two requests."""
    async with served() as server:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                response = await server.post("/v1/chat/completions", message(), headers={"X-Request-Id": "mine"})
                assert response.headers["x-request-id"] == "mine"

            nursery.start_soon(ask)
            nursery.start_soon(ask)
        ids = [request.id for request in server.orchestrator.requests]
        assert len(set(ids)) == 2
        assert all(id is not None and id.endswith(":mine") for id in ids)
        assert (await server.get("/live")).headers["x-request-id"].startswith("req-")
        error_of(await server.get("/live", headers={"X-Request-Id": "x" * 200}), 400)


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf", "1_0", "", ".", "1e400"])
async def test_a_deadline_is_a_positive_number(given: str) -> None:
    async with served() as server:
        response = await server.post("/v1/chat/completions", message(), headers={"X-Request-Timeout": given})
        assert error_of(response, 400)["param"] == "X-Request-Timeout"


async def test_the_smaller_deadline_counts() -> None:
    async with served() as server:
        await server.post("/v1/chat/completions", message(timeout=7), headers={"X-Request-Timeout": "20"})
        await server.post("/v1/audio/speech", {"input": "a", "timeout": 30}, headers={"X-Request-Timeout": "20"})
        await server.post("/v1/chat/completions", message())
        first, second, third = [request.deadline_s for request in server.orchestrator.requests]
        assert first is not None
        assert 6 < first <= 7
        assert second is not None
        assert 19 < second <= 20
        assert third is not None
        assert 599 < third <= 600  # the deployment's own


async def test_the_deployments_deadline_bounds_the_requests() -> None:
    async with served(answer, "limits.deadline_s=5") as server:
        await server.post("/v1/chat/completions", message(timeout=30), headers={"X-Request-Timeout": "20"})
        (request,) = server.orchestrator.requests
        assert request.deadline_s is not None
        assert 4 < request.deadline_s <= 5


async def test_a_priority_comes_by_field_or_header_and_the_later_one_counts() -> None:
    cases: list[tuple[dict[str, int], dict[str, str], int]] = [
        ({}, {}, 0),
        ({"priority": -3}, {}, -3),
        ({}, {"X-Request-Priority": "-7"}, -7),
        ({"priority": -100}, {"X-Request-Priority": "+5"}, 5),
        ({"priority": 100}, {"X-Request-Priority": "5"}, 100),
    ]
    async with served() as server:
        for fields, headers, _ in cases:
            await server.post("/v1/chat/completions", message() | fields, headers=headers)
            await server.post("/v1/audio/speech", {"input": "a", **fields}, headers=headers)
            await server.post("/v1/completions", {"prompt": "a", **fields}, headers=headers)
        found = [request.priority for request in server.orchestrator.requests]
        assert found == [priority for _, _, priority in cases for _ in range(3)]


@pytest.mark.parametrize("given", ["", "high", "1.5", "101", "-101", "99999", "1 2", "²"])
async def test_a_priority_is_a_whole_number_within_bounds(given: str) -> None:
    async with served() as server:
        headers = [(b"X-Request-Priority", given.encode("latin-1"))]
        response = await server.post("/v1/chat/completions", message(), headers=headers)
        assert error_of(response, 400)["param"] == "X-Request-Priority"
        response = await server.post("/v1/chat/completions", message(priority=101))
        assert error_of(response, 400)["param"] == "priority"


async def test_callers_are_told_apart_by_their_key_which_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with served(options=ServerOptions(api_keys=("first-secret", "second-secret"))) as server:
        for key in ("first-secret", "second-secret", "first-secret"):
            response = await server.post("/v1/chat/completions", message(), headers={"Authorization": f"Bearer {key}"})
            assert response.status_code == 200
        one, two, again = [request.tenant for request in server.orchestrator.requests]
        assert one == again != two
        assert one
        assert two
        said = caplog.text + "".join(map(repr, server.orchestrator.requests))
        assert "secret" not in said


async def test_without_keys_callers_are_not_distinguished() -> None:
    async with served() as server:
        await server.post("/v1/chat/completions", message(), headers={"Authorization": "Bearer whatever"})
        assert server.orchestrator.requests[0].tenant == ""


async def test_an_unexpected_failure_is_500_with_an_id(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets an id and no traceback; the log has both."""

    def broken(request: Any) -> Any:
        raise RuntimeError("secret detail")

    async with served(broken) as server:
        with caplog.at_level(logging.ERROR, "omni_actors"):
            response = await server.post("/v1/chat/completions", message())
        error = error_of(response, 500)
        assert response.headers["x-request-id"] in error["message"]
        assert "secret" not in response.text
        assert any(record.exc_info and "secret detail" in str(record.exc_info[1]) for record in caplog.records)
        assert (await server.get("/live")).status_code == 200


COMMANDS = frozenset({"/admin/replicas", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""The routes of operators, whose bodies are short."""


async def test_every_route_is_json_on_a_wrong_body() -> None:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer boss"}
    async with served(options=ServerOptions(admin_keys=("boss",))) as server:
        for method, path, _ in ROUTES:
            if method == "POST":
                for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000):
                    response = await server.client.post(path, content=content, headers=headers)
                    too_long = path in COMMANDS and len(content) > MAX_COMMAND
                    unserved = path == "/v1/images/variations"  # whatever its body
                    error_of(response, 413 if too_long else 404 if unserved else 400)
        assert not server.orchestrator.requests


async def test_a_body_in_a_coding_is_415() -> None:
    async with served() as server:
        for coding in ("gzip", "br", "gzip, identity"):
            answered = await server.post("/v1/chat/completions", message(), headers={"Content-Encoding": coding})
            assert error_of(answered, 415)["param"] == "Content-Encoding"
        assert not server.orchestrator.requests
        answered = await server.post("/v1/chat/completions", message(), headers={"Content-Encoding": "Identity"})
        assert answered.status_code == 200


@pytest.mark.parametrize("pipeline", [TEXT_ONLY, None], ids=["read here", "read in the media process"])
async def test_json_that_is_nested_too_deeply_is_400_and_names_its_field(pipeline: Any) -> None:
    """Also where a field takes any value, at depths that a parser reads and at those that none does."""
    async with served() if pipeline is None else served(pipeline=pipeline) as server:
        for depth in (150, 900, 2_000, 20_000):
            deep = b'{"a":' * depth + b"1" + b"}" * depth
            for field in ("chat_template_kwargs", "prediction", "tools", "messages"):
                body = b'{"messages":[{"role":"user","content":"hi"}],"%s":%s,"x":1}' % (field.encode(), deep)
                response = await server.client.post("/v1/chat/completions", content=body)
                if field == "chat_template_kwargs":
                    body = body.replace(b',"x":1', b"")
                    response = await server.client.post("/v1/chat/completions", content=body)
                error = error_of(response, 400)
                if depth >= 2_000 or field == "chat_template_kwargs":
                    assert error["param"] == field, (depth, error)
                if field == "chat_template_kwargs":
                    assert "nested" in error["message"], (depth, error)
        assert not server.orchestrator.requests


async def test_an_error_repeats_only_the_beginning_of_what_is_long() -> None:
    async with served() as server:
        for body in ({"x" * 100_000: 1}, {"modalities": ["x" * 100_000]}):
            response = await server.post("/v1/chat/completions", message(**body))
            error_of(response, 400)
            assert len(response.content) < 1_000


async def test_a_text_models_bodies_have_a_bound_of_their_own() -> None:
    """Without a media process they are parsed in the serving process, where nothing may take long."""
    async with served(pipeline=TEXT_ONLY) as server:
        fits = {"prompt": "x" * (4_000_000)}
        assert (await server.post("/v1/completions", fits)).status_code == 200
        error = error_of(await server.post("/v1/completions", {"prompt": "x" * (4 << 20)}), 413)
        assert error["code"] == "too_large"


async def test_an_answer_to_an_unread_body_arrives() -> None:
    """Nobody reads the body of an unknown route: its sender still gets the answer, and the connection goes on."""
    async with served() as server:
        head = b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n"
        body = b"x" * 5_000_000
        received = await raw(server, head, body, b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 404")
        assert received.count(b"HTTP/1.1 200") == 1


async def test_a_connection_that_is_to_close_closes() -> None:
    """Every time: what the server reports behind a response must not keep it from closing."""
    async with served() as server:
        body = json.dumps(message(stream=True)).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        with trio.fail_after(9):  # less than one connection that stays open
            for _ in range(20):
                assert (await raw(server, head % len(body), body)).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


async def test_head_requests_and_plain_options() -> None:
    async with served() as server:
        head = await server.client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert (await server.client.options("/v1/models")).status_code == 200


@pytest.mark.parametrize("host", [".x", "a..b", "x" * 64, "\xe4", ""])
async def test_a_host_that_is_no_name_is_of_no_interest(host: str) -> None:
    async with served(answer) as server:
        for path, status in (("/live", b"200"), ("/nowhere", b"404"), ("/v1/models/assistant", b"200")):
            asked = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            assert (await raw(server, asked.encode("latin-1"))).startswith(b"HTTP/1.1 " + status)
