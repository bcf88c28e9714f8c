"""A URL in a request reaches nothing but the public net."""

from __future__ import annotations

import pytest
from tests.entrypoints.fakes import PIPELINE, message, served

URLS = [
    "http://127.0.0.1/a.wav",
    "http://localhost:8000/v1/models",
    "http://[::1]/a.wav",
    "http://169.254.169.254/latest/meta-data/",
    "http://0.0.0.0/a.wav",
    "http://10.0.0.1/a.wav",
    "http://192.168.1.1/a.wav",
    "http://[::ffff:127.0.0.1]/a.wav",
    "http://2130706433/a.wav",
    "http://0x7f.1/a.wav",
    "file:///etc/passwd",
    "ftp://example.com/a.wav",
    "gopher://127.0.0.1:70/_x",
]


@pytest.mark.parametrize("url", URLS)
async def test_private_addresses_and_other_schemes_are_denied(url: str) -> None:
    async with served(pipeline=PIPELINE) as server:
        content = [{"type": "audio_url", "audio_url": {"url": url}}]
        reply = await server.post("/v1/chat/completions", message(content))  # type: ignore[arg-type]
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] is not None
        assert "root:" not in reply.text
        assert not server.orchestrator.requests
        await server.settled()
