"""A full server refuses requests for pictures before anything is done for them: parsed, decoded or fetched."""

from __future__ import annotations

from typing import Any

import pytest
from tests.entrypoints.images.painter import EDITS, GENERATIONS, paint, painter
from tests.entrypoints.images.test_chat import PICTURE, said, text
from tests.entrypoints.images.test_edits import FIRST
from tests.entrypoints.test_early_rejection import FULL, NO_LINE, decodings, permit
from tests.entrypoints.test_media import CHAT, LOCAL, image
from tests.entrypoints.test_middleware import error_of
from tests.media.web import ok, web

EARLY: dict[str, tuple[str, dict[str, Any]]] = {
    "generation": (GENERATIONS, {"json": {"prompt": "a boat", "stream": True}}),
    "edit in a form": (EDITS, {"data": {"prompt": "blue"}, "files": {"image": ("a.png", FIRST)}}),
    "edit in JSON": (EDITS, {"json": {"prompt": "blue", "images": [{"image_url": PICTURE}]}}),
    "chat": (CHAT, {"json": said(text("blue"), image(PICTURE))}),
}


@pytest.mark.parametrize("kind", EARLY)
async def test_a_full_server_decodes_nothing(kind: str) -> None:
    path, request = EARLY[kind]
    async with painter(paint, FULL, NO_LINE) as server:
        taken = permit(server.orchestrator)
        assert taken is not None
        response = await server.client.post(path, **request)
        assert "The server is full" in error_of(response, 429)["message"]
        assert decodings(server) == []
        assert server.orchestrator.requests == []
        assert server.orchestrator.admission.refused == {"queue_full": 1}
        server.orchestrator.admission.release(taken)
        assert (await server.client.post(path, **request)).status_code == 200
        await server.settled()


@pytest.mark.parametrize("kind", ["edit in JSON", "chat"])
async def test_a_full_server_fetches_nothing(kind: str) -> None:
    async with web(ok(FIRST)) as listener, painter(paint, FULL, NO_LINE, LOCAL) as server:
        permit(server.orchestrator)
        url = listener.url("/x.png")
        bodies = {
            "edit in JSON": {"prompt": "blue", "images": [{"image_url": url}]},
            "chat": said(text("a"), image(url)),
        }
        error_of(await server.post(EARLY[kind][0], bodies[kind]), 429)
        assert listener.connections == 0


@pytest.mark.parametrize("kind", EARLY)
async def test_a_request_without_time_is_not_begun(kind: str) -> None:
    path, request = EARLY[kind]
    async with painter() as server:
        response = await server.client.post(path, **request, headers={"X-Request-Timeout": "1e-9"})
        assert error_of(response, 408)["code"] == "deadline_exceeded"
        assert server.orchestrator.requests == []
        await server.settled()
