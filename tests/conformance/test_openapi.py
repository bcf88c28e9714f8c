"""The OpenAPI document is true: of every route, and of what schemathesis makes of it against a served deployment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.openai.fields import Refused, marks
from omni_actors.entrypoints.openai.openapi import document
from omni_actors.entrypoints.openai.schemas import ChatRequest

HERE = Path(__file__).parent
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_the_document_has_every_route_and_no_other() -> None:
    paths = json.loads(document())["paths"]
    listed = {(method.upper(), path) for path, it in paths.items() for method in it.keys() & {"get", "post"}}
    assert listed == {(method, re.sub(r"<(?:path:)?(\w+)>", r"{\1}", path)) for method, path, _ in ROUTES}


def test_its_references_lead_somewhere_and_nothing_internal_is_shown() -> None:
    text = document().decode()
    known = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(known)
    assert not {"ClipPart", "ImagePart", "VideoPart"} & set(re.findall(r"\w+", text))


def test_fields_that_are_refused_say_so() -> None:
    properties = json.loads(document())["components"]["schemas"]["ChatRequest"]["properties"]
    assert set(properties) == set(ChatRequest.__struct_encode_fields__)
    for name, mark in marks(ChatRequest, Refused).items():
        assert properties[name]["enum"] == [*mark.neutral, None]
        assert mark.why in properties[name]["description"]


@pytest.fixture
def deployment() -> Iterator[str]:
    """A served stub with short deadlines: what would say words for ever is 408."""
    with serving("stub-voice", "limits.deadline_s=0.3") as url:
        yield url


@contextmanager
def serving(model: str, override: str) -> Iterator[str]:
    """A served model, which still serves at the end; its URL."""
    command = [sys.executable, "-m", "omni_actors", "serve", model, "--platform", "cpu", "--port", "0"]
    command += ["--set", override]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        found = re.match(r"Serving \S+ on (\S+)", process.stdout.readline())
        assert found is not None
        yield found[1]
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.deadline(180)
def test_schemathesis_finds_no_500_and_nothing_undocumented(deployment: str, tmp_path: Path) -> None:
    """Commands to replicas are left out: they are obeyed."""
    assert cases_of(deployment, "stub-voice", tmp_path, "--exclude-path", "/admin/replicas") > 500


@pytest.mark.slow
@pytest.mark.deadline(180)
def test_schemathesis_finds_no_500_of_pictures(tmp_path: Path) -> None:
    with serving("stub-image", "stages.image.options.max_pixels=65536") as url:
        assert cases_of(url, "stub-image", tmp_path, "--include-path-regex", "^/v1/(images|chat)") > 300


def cases_of(deployment: str, model: str, tmp_path: Path, *which: str) -> int:
    """Let schemathesis ask a deployment, and return how many cases it made; all of them must pass."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
    command += ["run", f"{deployment}/openapi.json", "--url", deployment, "--seed", "1", "--max-examples", "10"]
    command += ["--phases", "coverage,fuzzing", "--checks", CHECKS, *which, "--no-color"]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.conformance.openapi_hooks",
        "SERVED_MODEL": model,
        "PYTHONPATH": str(HERE.parents[1]),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return int(re.findall(r"(\d+) generated, \1 passed", done.stdout)[0])


def test_the_document_is_served(deployment: str) -> None:
    answer: Any = httpx.get(f"{deployment}/openapi.json").json()
    (card,) = httpx.get(f"{deployment}/v1/models").json()["data"]
    assert answer == json.loads(document(frozenset(card["capabilities"]["tasks"])))
    assert "/v1/audio/translations" not in answer["paths"]


def test_a_route_without_its_task_is_not_listed() -> None:
    everywhere = json.loads(document(frozenset()))["paths"]
    assert "/v1/models" in everywhere
    for task, path in {
        "chat": "/v1/chat/completions",
        "completion": "/v1/completions",
        "speech": "/v1/audio/speech",
        "transcription": "/v1/audio/transcriptions",
        "translation": "/v1/audio/translations",
        "image": "/v1/images/generations",
        "image_edit": "/v1/images/edits",
    }.items():
        assert path not in everywhere
        assert set(json.loads(document(frozenset({task})))["paths"]) == {*everywhere, path}
