"""A form means the same however the network cuts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from omni_actors.entrypoints.openai.fields import convert
from omni_actors.entrypoints.openai.forms import MAX_FIELDS_BYTES, MAX_HEAD, SLICE, read_files, read_form
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest
from omni_actors.protocol.errors import OmniError

KIND = "multipart/form-data; boundary=b"
FILE = b"RIFF\r\n--not the boundary\r\n\r\r\n"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


FORM = part("model", b"parrot") + part("file", FILE, '; filename="a.wav"') + part("language", b"en") + b"--b--\r\n"


async def read(*pieces: bytes, lists: Collection[str] = ()) -> tuple[dict[str, Any], Any]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def take(file: AsyncIterator[bytes], filename: str | None, content_type: str | None) -> bytes:
        return b"".join([piece async for piece in file])

    return await read_form(body(), KIND, "file", take, lists)


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


async def refused(*pieces: bytes, kind: str = KIND) -> tuple[int, str, int]:
    """Status, parameter, and how many bytes were read before it was said."""
    taken = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal taken
        for piece in pieces:
            taken += len(piece)
            yield piece

    async def take(file: AsyncIterator[bytes], filename: str | None, content_type: str | None) -> None:
        pass

    with pytest.raises(OmniError) as error:
        await read_form(body(), kind, "file", take)
    return error.value.info.status, error.value.info.param or "", taken


async def test_fields_are_not_kept_beyond_their_limit() -> None:
    """Whether one is too large or many are: what comes behind the limit is not read."""
    piece = bytes(SLICE)
    many = [part("prompt[]", piece) for _ in range(60)]
    for pieces in ([part("prompt", b"")[:-2], *[piece] * 1000, b"\r\n--b--\r\n"], [*many, b"--b--\r\n"]):
        status, _, taken = await refused(*pieces)
        assert status == 400
        assert taken < MAX_FIELDS_BYTES + 3 * SLICE


@pytest.mark.parametrize(
    "head",
    [b"a:b\r\n" * 200_000, b"X: " + b"y" * 1_000_000 + b"\r\n", b"X: y" + b"\r\n z" * 200_000 + b"\r\n"],
    ids=["lines", "a line", "folded"],
)
async def test_the_head_of_a_part_is_not_waited_for_for_long(head: bytes) -> None:
    """It is taken apart in one go, which would hold up everybody."""
    form = part("prompt", b"hi").replace(b"\r\n\r\n", b"\r\n" + head + b"\r\n") + b"--b--\r\n"
    for pieces in ([form], [form[at : at + 1000] for at in range(0, len(form), 1000)]):
        status, _, taken = await refused(*pieces)
        assert status == 400
        assert taken < MAX_HEAD + 2 * SLICE or len(pieces) == 1


async def test_a_content_type_is_short() -> None:
    assert (await refused(FORM, kind=KIND + "; a=b" * 10_000))[0] == 400


@pytest.mark.parametrize("names", [("a", "a[]"), ("a[]", "a"), ("a", "a"), ("a[]", "a[]", "a")])
async def test_a_name_comes_twice_only_as_a_list(names: tuple[str, ...]) -> None:
    assert (await refused(*(part(name, b"1") for name in names), b"--b--\r\n"))[:2] == (400, "a")
    assert (await read(part("a[]", b"1"), part("a[]", b"2"), b"--b--\r\n"))[0] == {"a": ["1", "2"]}


@pytest.mark.parametrize("names", [("a",), ("a[]",), ("a", "a"), ("a[]", "a[]"), ("a", "a[]"), ("a[]", "a")])
async def test_a_list_comes_with_brackets_or_without_once_or_repeated(names: tuple[str, ...]) -> None:
    form = (*(part(name, b"%d" % place) for place, name in enumerate(names)), part("b", b"x"), b"--b--\r\n")
    assert (await read(*form, lists={"a"}))[0] == {"a": ["0", "1"][: len(names)], "b": "x"}


MOST = {"image": 3, "mask": 1}


def file_part(name: str, value: bytes) -> bytes:
    return part(name, value, '; filename="a.png"\r\nContent-Type: image/png')


async def read_pictures(*pieces: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def take(field: str, file: AsyncIterator[bytes], filename: str | None, kind: str | None) -> tuple[str, bytes]:
        return field, b"".join([piece async for piece in file])

    return await read_files(body(), KIND, MOST, take)


@pytest.mark.parametrize("names", [("image",) * 3, ("image[]",) * 3, ("image", "image[]", "image")])
async def test_several_files_keep_their_order(names: tuple[str, ...]) -> None:
    form = (
        file_part("mask", b"m"),
        *(file_part(name, b"%d" % place + FILE) for place, name in enumerate(names)),
        part("prompt", b"a cat"),
        b"--b--\r\n",
    )
    images = [("image", b"%d" % place + FILE) for place in range(3)]
    meant = ({"prompt": "a cat"}, {"mask": [("mask", b"m")], "image": images})
    assert await read_pictures(*form) == meant
    whole = b"".join(form)
    assert await read_pictures(*(whole[at : at + 1] for at in range(len(whole)))) == meant


@pytest.mark.parametrize(
    ("parts", "param", "words"),
    [
        ((file_part("image", b""),) * 4, "image", "more than 3 files"),
        ((file_part("mask", b""),) * 2, "mask", "more than one file"),
        ((file_part("mask[]", b""),), "mask[]", "image, mask"),
        ((file_part("picture", b""),), "picture", "image, mask"),
    ],
)
async def test_too_many_files_and_files_in_other_fields_are_refused(
    parts: tuple[bytes, ...], param: str, words: str
) -> None:
    with pytest.raises(OmniError, match=words) as error:
        await read_pictures(*parts, b"--b--\r\n")
    assert (error.value.info.status, error.value.info.param) == (400, param)


@given(st.data())
def test_an_empty_field_of_a_form_counts_as_not_given(data: st.DataObject) -> None:
    given = {"temperature": "0.5", "response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
    fields: dict[str, Any] = dict(given)
    for name in data.draw(st.sets(st.text() | st.sampled_from(TranscriptionRequest.__struct_encode_fields__))):
        fields.setdefault(name, data.draw(st.sampled_from(["", [], [""], ["", ""]])))
    fields["timestamp_granularities"] = data.draw(st.permutations(["word", "", "segment", ""]).filter(in_order))
    assert convert(fields, TranscriptionRequest) == convert(given, TranscriptionRequest)


def in_order(several: list[str]) -> bool:
    return several.index("word") < several.index("segment")
