"""The table of differences from vLLM-Omni agrees with the routes and fields of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.entrypoints.fakes import PIPELINE, served
from tests.entrypoints.images.painter import painter
from tests.entrypoints.images.test_chat import PICTURE
from tests.entrypoints.test_audio import CLONER
from tests.entrypoints.test_middleware import error_of

from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.openai.fields import NoOp, Refused, marks
from omni_actors.entrypoints.openai.images.schemas import EditForm, GenerationRequest
from omni_actors.entrypoints.openai.schemas import ChatRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest

PAGE = (Path(__file__).parents[2] / "docs" / "vllm_omni.md").read_text()
VERDICTS = {"alike", "OpenAI's form", "more", "refused", "not served"}
BODIES: dict[str, type[msgspec.Struct]] = {
    "POST /v1/chat/completions": ChatRequest,
    "POST /v1/audio/speech": SpeechRequest,
    "POST /v1/images/generations": GenerationRequest,
    "POST /v1/images/edits": EditForm,
}


class Row(NamedTuple):
    route: str | None
    field: str | None
    verdict: str


def rows() -> list[Row]:
    made = []
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        found = re.fullmatch(r"`((?:GET|POST|DELETE) /\S+)`(?: `(\w+)`)?", cells[0])
        made.append(Row(found[1] if found else None, found[2] if found else None, cells[3]))
    return made


ROWS = rows()
SERVED = {f"{method} {path}" for method, path, _ in ROUTES}


def test_every_row_has_one_of_the_five_verdicts_and_none_comes_twice() -> None:
    assert {row.verdict for row in ROWS} <= VERDICTS
    named = [row[:2] for row in ROWS if row.route]
    assert len(named) == len(set(named)) > 40


def test_routes_are_served_or_not_as_the_table_says() -> None:
    for row in ROWS:
        if row.route is not None and row.field is None:
            assert (row.route in SERVED) == (row.verdict != "not served"), row
    told = {row.route for row in ROWS}
    missing = {route for route in SERVED if " /v1/" in route and "<" not in route} - told
    assert missing <= {"GET /v1/audio/models"}  # which only clients of others look for


@pytest.mark.parametrize("row", [row for row in ROWS if row.field], ids=lambda row: f"{row.route} {row.field}")
def test_a_field_is_taken_or_refused_as_the_table_says(row: Row) -> None:
    assert row.route is not None
    assert row.field is not None
    kind = BODIES[row.route]
    taken = row.field in kind.__struct_encode_fields__ and row.field not in marks(kind, Refused)
    assert taken == (row.verdict != "refused")
    assert row.field not in marks(kind, NoOp)


async def test_a_refused_field_is_refused_by_name() -> None:
    usual: dict[str, dict[str, Any]] = {
        "POST /v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "POST /v1/audio/speech": {"input": "Hello."},
        "POST /v1/images/generations": {"prompt": "a boat"},
        "POST /v1/images/edits": {"prompt": "a boat", "images": [{"image_url": PICTURE}]},
    }
    async with served(pipeline=PIPELINE) as chat, served(pipeline=CLONER) as speech, painter() as images:
        for row in ROWS:
            if row.route is None or row.field is None or row.verdict != "refused":
                continue
            server = speech if row.route.endswith("speech") else images if "/images/" in row.route else chat
            body = {**usual[row.route], row.field: [0.5]}
            error = error_of(await server.post(row.route.partition(" ")[2], body), 400)
            assert error["param"] == row.field
        for row in ROWS:
            if row.route is not None and row.verdict == "not served":
                method, _, path = row.route.partition(" ")
                found = await chat.client.request(method, path.replace("{name}", "x"))
                assert found.status_code in (404, 405)
