"""The reference pages say what the code says, and the code says something about everything."""

from __future__ import annotations

import ast
import re

import click
import pytest
from tools.reference import cli, errors, keys, limits, metrics
from tools.reference.error_sources import SOURCE
from tools.reference.markdown import Undocumented, documented
from tools.reference.pages import FOLDER, PAGES

from omni_actors.media.stage import STAGE as MEDIA
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.deploy.schema import settings_schema
from omni_actors.pipelines.explain import settings_builtins
from omni_actors.protocol.error_codes import ERROR_CODES
from omni_actors.protocol.options import Option
from omni_actors.telemetry.engine_counters import ENGINE_COUNTERS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    """If a page is not, ``make reference`` writes it anew."""
    assert (FOLDER / name).read_text() == PAGES[name]()


def test_every_reference_page_is_generated() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("pipeline", keys.pipelines(), ids=lambda it: it.name)
def test_every_key_of_a_deployment_is_on_a_page(pipeline: Pipeline) -> None:
    pages = (FOLDER / "deploy-keys.md").read_text() + (FOLDER / "limits.md").read_text()
    schema = settings_schema(pipeline, keys.platforms(), MEDIA)
    names = {key.rpartition(".")[2] for key in settings_builtins(schema)}
    assert len(names) > 40
    assert [name for name in sorted(names) if not re.search(rf"`(?:[\w.]+\.)?{name}`", pages)] == []


def test_every_number_that_a_worker_reports_has_a_help_text() -> None:
    reported = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "stub":
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name == "counters":
                reported |= _keys(function)
    assert len(reported) > 30
    assert reported <= ENGINE_COUNTERS.keys()


def _keys(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function writes as keys of a dictionary."""
    found = set()
    for it in ast.walk(function):
        keys = it.keys if isinstance(it, ast.Dict) else [it.slice] if isinstance(it, ast.Subscript) else []
        found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def test_an_option_without_help_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.option("--secret")
    def tell(secret: str) -> None:
        """Tell a secret."""

    monkeypatch.setattr(cli, "cli", tell)
    with pytest.raises(Undocumented, match="--secret"):
        cli.make()


def test_an_error_code_without_a_meaning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {code: meaning for code, meaning in ERROR_CODES.items() if code != "poison"}
    monkeypatch.setattr(errors, "ERROR_CODES", {**known, "never": "No error has this code."})
    with pytest.raises(Undocumented, match=r"without a meaning: \['poison'\]; meanings of unused codes: \['never'\]"):
        errors.make()


def test_a_number_of_workers_without_help_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ENGINE_COUNTERS", {**ENGINE_COUNTERS, "riddles_total": ""})
    with pytest.raises(Undocumented, match="riddles_total"):
        metrics.make()


def test_a_limit_without_a_sentence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CODEC_OPTIONS", {"hush": Option(1)})
    with pytest.raises(Undocumented, match="hush"):
        limits.make()


@pytest.mark.parametrize("text", [None, "", "No full stop"])
def test_a_description_is_a_sentence(text: str | None) -> None:
    with pytest.raises(Undocumented):
        documented("it", text)
