"""What a body takes while it comes."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from omni_actors.entrypoints.http import Call, Opened, RequestContext
from omni_actors.entrypoints.openai.forms import read_form

SIZE = 40_000


class Dripping:
    """A body of two bytes at a time, each of them another object."""

    received = False

    def __init__(self, head: bytes = b"", tail: bytes = b"") -> None:
        drops = (b"%c\n" % (65 + number % 26) for number in range(SIZE // 2))
        self._pieces = iter(filter(None, itertools.chain([head], drops, [tail])))

    async def receive(self) -> bytes:
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if piece := next(self._pieces, b""):
            return piece
        raise StopAsyncIteration


async def _json() -> None:
    call = Call(RequestContext("req-1", None, 0.0), {}, Dripping(), Opened(), lambda data: False)
    data, whole = await call.read(2 * SIZE)
    assert (len(data), whole) == (SIZE, True)
    data, whole = await Call(call.context, {}, Dripping(), Opened(), lambda data: False).read(SIZE - 1)
    assert (len(data), whole) == (SIZE, False)


async def _form() -> None:
    async def take(*file: Any) -> None:
        pass

    body = Dripping(b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n', b"\r\n--b--\r\n")
    fields, _ = await read_form(body, "multipart/form-data; boundary=b", "file", take)
    assert len(fields["prompt"]) == SIZE


@pytest.mark.parametrize("read", [_json, _form], ids=["json", "form"])
async def test_a_body_in_tiny_pieces_takes_no_more_than_another(read: Callable[[], Awaitable[None]]) -> None:
    tracemalloc.start()
    try:
        await read()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * SIZE
