"""The pages agree with the code: their programs run, their options exist, and their tables are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from tests.harness.documents import PAGES, ROOT, blocks, rows

from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.cli import cli
from omni_actors.entrypoints.openai.fields import accepted_no_ops
from omni_actors.entrypoints.openai.images.chat_request import ImageChatRequest
from omni_actors.entrypoints.openai.images.schemas import EditForm, GenerationRequest, LoraChoice
from omni_actors.entrypoints.openai.loras import UnloadLora
from omni_actors.entrypoints.openai.schemas import AssistantMessage, ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest
from omni_actors.entrypoints.server.server import Reason
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.validate import check_declaration
from omni_actors.platforms import OmniPlatform
from omni_actors.platforms.platform import default_options

HOW_TO_BLOCKS = [
    (page, block)
    for page in ("docs/contributing/add-a-platform.md", "docs/contributing/add-a-model.md")
    for block in blocks(page, "python")
]
"""The code of the pages that say how to add a platform and a pipeline."""


def test_contributing_examples_are_a_platform_and_a_pipeline() -> None:
    made: dict[str, Any] = {}
    for page, block in HOW_TO_BLOCKS:
        exec(compile(block, page, "exec"), made)
    platform = made["MyPlatform"]()
    assert isinstance(platform, OmniPlatform)
    assert platform.worker_environment("mine:3", 2, default_options(platform))["MINE_VISIBLE_DEVICES"] == "3"
    assert all(option.doc for option in platform.options.values())
    assert isinstance(made["PIPELINE"], Pipeline)
    check_declaration(made["PIPELINE"])


def test_contributing_examples_import_no_torch() -> None:
    """The conformance kit would refuse a platform that imports torch in the serving process."""
    code = "import sys\nfor block in sys.argv[1:]: exec(block, {})\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *(block for _, block in HOW_TO_BLOCKS)], check=True, timeout=60)


def test_contributing_names_files_that_exist() -> None:
    source = ROOT / "src" / "omni_actors"
    rooms = [path.name for path in source.iterdir() if path.is_dir()]
    pages = [path.read_text() for path in (ROOT / "docs/contributing").glob("*.md") if path.name != "renames.md"]
    named = [name for text in pages for name in re.findall(rf"`((?:{'|'.join(rooms)})/[\w/]+\.py)`", text)]
    assert len(named) > 50
    assert [name for name in named if not (source / name).exists()] == []


def test_the_glossary_names_classes_that_exist() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/omni_actors").rglob("*.py"))
    named = set(re.findall(r"`([A-Z]\w+)`", (ROOT / "docs/contributing/glossary.md").read_text()))
    assert len(named) > 20
    assert sorted(named - set(re.findall(r"^class (\w+)", source, re.MULTILINE))) == []


# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_api_page_lists_every_endpoint() -> None:
    documented = {
        endpoint for row in rows("docs/api.md", "Endpoints") for endpoint in re.findall(r"`([A-Z]+ /[^`]*)`", row[0])
    }
    served = {
        f"{method} {re.sub(r'<(?:path:name|(token))>', lambda it: '{' + (it[1] or 'id') + '}', path)}"
        for method, path, _ in ROUTES
    }
    assert documented == served


_BODIES = (
    ChatRequest,
    CompletionRequest,
    AssistantMessage,
    SpeechRequest,
    TranscriptionRequest,
    GenerationRequest,
    EditForm,
    ImageChatRequest,
    LoraChoice,
    UnloadLora,
)


def test_the_api_page_publishes_the_accepted_no_ops() -> None:
    documented = {row[0]: row[1] for row in rows("docs/api.md", "Fields that change nothing")}
    expected: dict[str, str] = {}
    for kind in _BODIES:
        expected |= {f"`{name}`": why for name, why in accepted_no_ops(kind).items()}
    assert documented == expected


def test_the_deploying_page_explains_why_connections_end() -> None:
    page = (ROOT / "docs/deploying.md").read_text()
    (table,) = re.findall(r"^\| reason \| \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", re.sub(r" \|.*", "", table))) == sorted(get_args(Reason))


@pytest.mark.parametrize("page", ["README.md", *(str(it.relative_to(ROOT)) for it in PAGES)])
def test_the_python_of_a_page_compiles(page: str) -> None:
    for block in blocks(page, "python"):
        compile(block, page, "exec")


@pytest.mark.parametrize("page", ["README.md", *(str(it.relative_to(ROOT)) for it in PAGES)])
def test_commands_have_the_options_that_a_page_shows(page: str) -> None:
    for block in blocks(page, "sh"):
        for name, rest in re.findall(r"^omni-actors +(\w+)(.*?)(?:#.*)?$", block, re.MULTILINE):
            _parse(name, shlex.split(re.split(r" [|>] ", rest)[0]))


def _parse(name: str, words: list[str]) -> None:
    """Parse the options of a command without running the command. A file of the reader's own need not exist."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    try:
        parsed = command.make_context(name, words.copy())
    except click.BadParameter as error:
        if not error.message.endswith("does not exist."):
            raise
        return
    if isinstance(command, click.Group):
        below = command.get_command(parsed, words[0])
        assert below is not None, words
        below.make_context(words[0], words[1:], parent=parsed)


def test_the_deploy_file_of_the_deploying_page_is_valid(tmp_path: Path) -> None:
    (source,) = blocks("docs/deploying.md", "yaml")
    path = tmp_path / "deploy.yaml"
    path.write_text(source)
    plan = resolve(overlay=path)
    assert plan.served_model_name == "assistant"
    assert plan.stage("llm").replicas == 2


def test_the_actor_example_restarts_its_actor() -> None:
    source = blocks("docs/actors.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    first, crash, last = done.stdout.splitlines()
    assert (first, last) == ("2 5", "7")
    assert "counter" in crash


def test_the_engine_page_shows_the_engine_of_its_example() -> None:
    (engine,) = blocks("docs/contributing/add-an-engine.md", "python")
    assert engine in (ROOT / "examples/engine/src/omni_markov/engine.py").read_text()


def test_the_actors_page_shows_the_program_of_its_example() -> None:
    shown_files = blocks("docs/actors.md", "python")[1:]
    folder = ROOT / "examples/actors"
    assert shown_files == [(folder / name).read_text() for name in ("counting.py", "word_count.py")]
