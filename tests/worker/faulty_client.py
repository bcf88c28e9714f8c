"""A client that requests speech from the two stages of :mod:`tests.worker.faulty_line`."""

from __future__ import annotations

from omni_actors.orchestrator import Orchestrator
from omni_actors.pipelines.registry import Registry
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.request import MediaChunk, Request

REGISTRY = Registry({"faulty": "tests.worker.faulty_line:PIPELINE"})


async def say(orchestrator: Orchestrator, codes: list[list[int]], fault: str = "") -> bytes | ErrorInfo:
    line = {"codes": codes, "fault": fault}
    request = Request(task="speech", inputs=("text",), outputs=("audio",), params={"line": line})
    heard = b""
    try:
        async with orchestrator.open(request) as stream:
            async for event in stream:
                heard += event.data if isinstance(event, MediaChunk) else b""
    except OmniError as error:
        return error.info
    return heard
