"""A form means the same however the network cuts it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from omni_actors.entrypoints.openai.forms import read_form

KIND = "multipart/form-data; boundary=b"
FILE = b"RIFF\r\n--not the boundary\r\n\r\r\n"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


FORM = part("model", b"parrot") + part("file", FILE, '; filename="a.wav"') + part("language", b"en") + b"--b--\r\n"


async def read(*pieces: bytes) -> tuple[dict[str, Any], Any]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def take(file: AsyncIterator[bytes], filename: str | None, content_type: str | None) -> bytes:
        return b"".join([piece async for piece in file])

    return await read_form(body(), KIND, "file", take)


MEANT = ({"model": "parrot", "language": "en"}, FILE)


@pytest.mark.parametrize("form", [FORM, FORM[:-2], b"\r\n" + FORM, FORM.replace(b"\r\n--b\r\n", b"\r\n--b \t\r\n")])
async def test_cut_anywhere(form: bytes) -> None:
    """A cut behind ``--b-`` used to leave a carriage return at the value's end."""
    assert await read(form) == MEANT
    assert await read(*(form[at : at + 1] for at in range(len(form)))) == MEANT
    for at in range(len(form)):
        assert await read(form[:at], form[at:]) == MEANT


@given(st.lists(st.integers(0, len(FORM)), max_size=6))
async def test_cut_in_many_places(places: list[int]) -> None:
    places.sort()
    assert await read(*(FORM[a:b] for a, b in zip([0, *places], [*places, None], strict=True))) == MEANT


HEAD = b'--b\nContent-Disposition: form-data; name="prompt"\n\n'


@pytest.mark.parametrize("ending", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("behind", [b"--b--\n", b"\n--b--\n", b"\n\n--b--\n", b"\n\nx\n\n--b--\n"])
async def test_a_part_without_a_word_cut_anywhere(ending: bytes, behind: bytes) -> None:
    """The line break that ends its head may be the boundary's too. Cut there, the boundary used to be its value."""
    form = (HEAD + behind).replace(b"\n", ending)
    meant = await read(form)
    assert meant[0]["prompt"].strip() in ("", "x")
    assert await read(*(form[at : at + 1] for at in range(len(form)))) == meant
    for at in range(len(form)):
        assert await read(form[:at], form[at:]) == meant
