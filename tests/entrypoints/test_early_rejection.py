"""What is sure to be refused is refused before anything is done for it: read, parsed, decoded or fetched."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from tests.entrypoints.fakes import PIPELINE, FakeOrchestrator, Server, answer, message, served
from tests.entrypoints.test_audio import CLONER, HEAR, SAY
from tests.entrypoints.test_media import CHAT, CLIP, LOCAL, OMNI, PNG, body, image, movie, said
from tests.entrypoints.test_middleware import error_of
from tests.media.web import ok, web

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.orchestrator.permits import Permit
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import Request

FULL = "limits.max_inflight=1"
NO_LINE = "limits.max_queued=0"
COMPLETE = "/v1/completions"
B64 = base64.b64encode(CLIP).decode()
LONG = "x" * (300 << 10)
"""In a body, it makes it one for the media process."""
FORM: dict[str, Any] = {"data": {"model": "assistant"}, "files": {"file": ("a.wav", CLIP)}}

EARLY: dict[str, tuple[Pipeline, str, dict[str, Any]]] = {
    "image": (OMNI, CHAT, {"json": body(image())}),
    "video": (OMNI, CHAT, {"json": body(movie())}),
    "sound": (PIPELINE, CHAT, {"json": body({"type": "input_audio", "input_audio": {"data": B64, "format": "wav"}})}),
    "spoken chat": (PIPELINE, CHAT, {"json": message(LONG, modalities=["text", "audio"])}),
    "chat": (PIPELINE, CHAT, {"json": message(LONG)}),
    "completion": (PIPELINE, COMPLETE, {"json": {"prompt": LONG}}),
    "form": (PIPELINE, HEAR, FORM),
    "translation": (PIPELINE, "/v1/audio/translations", FORM),
    "clip in JSON": (PIPELINE, HEAR, {"json": {"input_audio": {"data": B64}}}),
    "clone": (CLONER, SAY, {"json": {"input": "Hello.", "ref_audio": B64, "x_vector_only_mode": True}}),
}
"""One request of each kind that has work for the media process before it is admitted."""


def permit(orchestrator: FakeOrchestrator, priority: int = 0) -> Permit | None:
    """Somebody comes in, or waits if nobody may."""
    task, needed = next(iter(orchestrator.plan.tasks.items()))
    outputs = (next(iter(needed.outputs)),)
    request = Request(task=task, outputs=outputs, priority=priority)
    graph = subgraph(orchestrator.plan, task, ("text",), outputs)
    found = orchestrator.admission.try_acquire(request, graph)
    if found is None:
        orchestrator.admission.enqueue(request, graph)
    return found


@asynccontextmanager
async def full(pipeline: Pipeline, *overrides: str, priority: int = 0) -> AsyncIterator[Server]:
    """A deployment where one request runs, and one waits if it may."""
    async with served(answer, FULL, LOCAL, *(overrides or (NO_LINE,)), pipeline=pipeline) as server:
        permit(server.orchestrator)
        if overrides:
            permit(server.orchestrator, priority)
        yield server


def decodings(server: Server) -> list[str]:
    """What the media process was asked to decode."""
    return [what for what in server.harness.asked if what in ("decode", "decode_parts")]


async def metric(server: Server, line: str) -> str | None:
    text = (await server.get("/metrics")).text
    return next((value for name, _, value in (it.rpartition(" ") for it in text.splitlines()) if name == line), None)


@pytest.mark.parametrize("kind", EARLY)
async def test_a_full_deployment_refuses_before_the_media_process_is_asked(kind: str) -> None:
    pipeline, path, request = EARLY[kind]
    async with served(answer, FULL, NO_LINE, pipeline=pipeline) as server:
        taken = permit(server.orchestrator)
        assert taken is not None
        response = await server.client.post(path, **request)
        error = error_of(response, 429)
        assert "The server is full" in error["message"]
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert server.harness.asked == []
        assert server.orchestrator.requests == []
        assert server.orchestrator.admission.refused == {"queue_full": 1}
        task = {CHAT: "chat", COMPLETE: "completion", HEAR: "transcription", SAY: "speech"}.get(path, "translation")
        assert await metric(server, f'omni_actors_requests_total{{outcome="failed",task="{task}"}}') == "1.0"
        server.orchestrator.admission.release(taken)
        assert (await server.client.post(path, **request)).status_code == 200
        assert server.orchestrator.admission.refused == {"queue_full": 1}
        await server.settled()


async def test_nothing_is_fetched_for_a_refused_request() -> None:
    async with web(ok(PNG)) as other, full(OMNI) as server:
        error_of(await server.post(CHAT, body(image(other.url()))), 429)
        error_of(await server.post(CHAT, body(said(LONG), image(other.url()), priority=0)), 429)
    async with web(ok(PNG)) as third, full(OMNI, "limits.max_queued=1") as server:
        # Here the priority is known when the body has been parsed.
        error_of(await server.post(CHAT, body(said(LONG), image(third.url()), image(), priority=0)), 429)
        assert set(server.harness.asked) - {"blob_open", "blob_append", "discard"} == {"parse_chat"}
        await server.settled()
        assert third.asked == other.asked == []
        assert (await server.post(CHAT, body(said(LONG), image(third.url()), priority=-1))).status_code == 200
        assert len(third.asked) == 1
        await server.settled()


STATES: dict[str, tuple[int, str]] = {
    "draining": (503, "draining"),
    "stage": (503, "stage_unavailable"),
    "key": (429, "max_per_key"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["image", "form", "clone"])
async def test_other_refusals_are_known_as_early(kind: str, state: str) -> None:
    pipeline, path, request = EARLY[kind]
    options = ServerOptions(api_keys=("red",))
    async with served(answer, "limits.max_per_key=1", pipeline=pipeline, options=options) as server:
        admission = server.orchestrator.admission
        if state == "draining":
            admission.close(ErrorInfo(message="bye", code="draining", status=503))
        elif state == "stage":
            for stage in server.orchestrator.plan.stages:
                admission.stage(stage.name, 0, coming=False)
        else:
            admission.tenants["key 0"] = 1
        response = await server.client.post(path, **request, headers={"Authorization": "Bearer red"})
        status, word = STATES[state]
        assert response.status_code == status
        assert word in response.text
        assert server.harness.asked == []


@pytest.mark.parametrize("kind", ["image", "form", "clip in JSON", "clone"])
async def test_one_that_would_be_let_in_for_its_priority_is(kind: str) -> None:
    pipeline, path, request = EARLY[kind]
    async with full(pipeline, "limits.max_queued=1") as server:
        for priority, status in ((0, 429), (1, 429), (-1, 200)):
            fields = next(iter(request))  # JSON or a form's fields
            asked = {**request, fields: {**request[fields], "priority": priority}}
            before = len(decodings(server))
            assert (await server.client.post(path, **asked)).status_code == status
            assert (len(decodings(server)) > before) == (status == 200)
        await server.settled()


@pytest.mark.parametrize("where", ["before", "behind"])
async def test_a_forms_priority_counts_in_any_place(where: str) -> None:
    mark = b"----b"
    field = b'--%b\r\nContent-Disposition: form-data; name="priority"\r\n\r\n-1\r\n' % mark
    file = b'--%b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n' % (mark, CLIP)
    data = (field + file if where == "before" else file + field) + b"--%b--\r\n" % mark
    headers = {"Content-Type": f"multipart/form-data; boundary={mark.decode()}"}
    async with full(PIPELINE, "limits.max_queued=1") as server:
        assert (await server.client.post(HEAR, content=data, headers=headers)).status_code == 200
        await server.settled()


LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"json": body(said("x" * (2 << 20)), image())}),
    "form": (HEAR, {"data": {"model": "assistant"}, "files": {"file": ("a.wav", CLIP + bytes(2 << 20))}}),
}


@pytest.mark.parametrize("kind", LARGE)
async def test_a_large_body_without_a_header_priority_is_read_but_not_decoded_when_refused(kind: str) -> None:
    path, request = LARGE[kind]
    async with full(OMNI if kind == "chat" else PIPELINE, "limits.max_queued=1") as server:
        error_of(await server.client.post(path, **request), 429)
        assert decodings(server) == []
        await server.settled()
        asked = len(server.harness.asked)
        error_of(await server.client.post(path, **request, headers={"X-Request-Priority": "0"}), 429)
        assert len(server.harness.asked) == asked


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("path", [CHAT, COMPLETE, SAY, HEAR])
async def test_a_large_upload_is_refused_unread(path: str, expect: bytes) -> None:
    async with full(CLONER if path == SAY else PIPELINE) as server:
        kind = b"multipart/form-data; boundary=b" if path == HEAR else b"application/json"
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: 30000000\r\n%b\r\n"
        with trio.fail_after(5):
            stream = await trio.open_tcp_stream(*_address(server))
            await stream.send_all(head % (path.encode(), kind, expect))
            reply = await stream.receive_some()
            await stream.aclose()
        assert reply.startswith(b"HTTP/1.1 429 ")


def _address(server: Server) -> tuple[str, int]:
    url = httpx.URL(server.url)
    assert url.port is not None
    return url.host, url.port


async def test_a_body_that_might_be_let_in_and_cannot_be_read_is_said_to_be_wrong() -> None:
    async with full(OMNI, "limits.max_queued=1") as server:
        for data in (b'{"image_url"', b'["image_url"]'):
            response = await server.client.post(CHAT, content=data, headers={"Content-Type": "application/json"})
            assert response.status_code == 400
