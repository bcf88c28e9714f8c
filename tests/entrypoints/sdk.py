"""The openai SDK as tests use it: in a thread, as its users do, with nothing of it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
import trio
from openai import AsyncOpenAI, OpenAI

TIMEOUT_S = 60.0


OURS = {"modality", "audio_metadata", "images", "seed", "index", "step", "steps", "skipped_steps"}
"""Fields that OpenAI's clients do not know: of chat those that clients of vLLM-Omni and others read, of pictures what
makes them again."""


def strict(value: Any) -> Any:
    """Nothing in a response that the SDK's types do not know, however deep, but :data:`OURS`."""
    if isinstance(value, pydantic.BaseModel):
        assert (value.model_extra or {}).keys() <= OURS, (type(value), value.model_extra)
        for name in type(value).model_fields:
            strict(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            strict(item)
    return value


async def blocking(url: str, use: Callable[[OpenAI], Any]) -> Any:
    def call() -> Any:
        with OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=TIMEOUT_S) as client:
            return use(client)

    return await trio.to_thread.run_sync(call)


async def asynchronous(url: str, use: Callable[[AsyncOpenAI], Awaitable[Any]]) -> Any:
    """On asyncio, which is where its users are."""

    async def main() -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=TIMEOUT_S) as client:
            return await use(client)

    return await trio.to_thread.run_sync(lambda: asyncio.run(main()))
