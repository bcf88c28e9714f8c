"""Whatever the value of a field: an answer or a 400, never a 500, and the server goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.entrypoints.images.painter import FACTS, GENERATIONS, painter
from tests.entrypoints.test_media import CHAT

from omni_actors.entrypoints.openai.images.chat_request import ImageChatRequest
from omni_actors.entrypoints.openai.images.schemas import GenerationRequest

HOSTILE = [
    *("-1", "0", "0.5", "1e400", "18446744073709551616"),
    *('""', r'"\u0000"', r'"\ud800"', '"{"', '"1x1"'),
    *("true", "null", "[null]", '["a"]', '{"a":1}', '[{"name":""}]'),
]

BODIES: dict[str, tuple[str, type[msgspec.Struct], str]] = {
    "generations": (GENERATIONS, GenerationRequest, '"prompt":"a boat"'),
    "chat": (CHAT, ImageChatRequest, '"messages":[{"role":"user","content":"a boat"}],"modalities":["image"]'),
}


@pytest.mark.parametrize("what", BODIES)
async def test_no_value_of_any_field_is_an_error_of_the_server(what: str) -> None:
    path, kind, base = BODIES[what]
    async with painter(facts=FACTS | {"max_pixels": 1 << 12}) as server:
        wrong: list[Any] = []
        for name in kind.__struct_encode_fields__:
            for value in HOSTILE:
                given = [f'"{name}":{value}', *(it for it in [base] if f'"{name}"' not in it)]
                response = await server.client.post(path, content=f"{{{','.join(given)}}}".encode())
                if response.status_code not in (200, 400, 404, 408):
                    wrong.append((name, value, response.status_code, response.text[:200]))
        assert wrong == []
        await server.settled()
