"""What the documents say is so: their code runs, their options exist, their numbers are the defaults."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import click

from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.cli import cli
from omni_actors.entrypoints.openai.fields import accepted_no_ops
from omni_actors.entrypoints.openai.schemas import AssistantMessage, ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest
from omni_actors.entrypoints.server import Limits
from omni_actors.entrypoints.server.server import Reason
from omni_actors.media.stage import STAGE as MEDIA
from omni_actors.models.common.codec_options import CODEC_DEFAULTS, CODEC_DOC
from omni_actors.pipelines.declaration import Pipeline, Stage
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.limits import limits_of, with_engine_options
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.pipelines.validate import check_declaration
from omni_actors.platforms import OmniPlatform

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def test_contributing_examples_are_a_platform_and_a_pipeline() -> None:
    made: dict[str, Any] = {}
    for block in blocks("CONTRIBUTING.md", "python"):
        exec(compile(block, "CONTRIBUTING.md", "exec"), made)
    platform = made["MyPlatform"]()
    assert isinstance(platform, OmniPlatform)
    assert platform.worker_environment("mine:3", 2, platform.options)["MINE_VISIBLE_DEVICES"] == "3"
    assert set(platform.options) == set(platform.options_doc)
    assert isinstance(made["PIPELINE"], Pipeline)
    check_declaration(made["PIPELINE"])


def test_contributing_examples_import_no_torch() -> None:
    """The conformance kit would refuse a platform that was copied from there."""
    code = "import sys\nfor block in sys.argv[1:]: exec(block, {})\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *blocks("CONTRIBUTING.md", "python")], check=True, timeout=60)


def test_contributing_names_files_that_exist() -> None:
    source = ROOT / "src" / "omni_actors"
    rooms = [path.name for path in source.iterdir() if path.is_dir()]
    named = re.findall(rf"`((?:{'|'.join(rooms)})/[\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 5
    assert [name for name in named if not (source / name).exists()] == []


# --- the README ------------------------------------------------------------------------------------------------------

README = ROOT / "README.md"


def rows(section: str) -> list[list[str]]:
    """The cells of the tables under a heading, header rows left out."""
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {section!r}"
    lines = [line for line in found[1].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def shown(name: str, value: Any) -> str:
    """A default as the README writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if name.endswith("_bytes") and value:
        return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def limit_rows() -> dict[str, list[list[str]]]:
    """What the README's tables of limits must hold, by whose they are."""

    def of_stage(kind: str) -> list[list[str]]:
        stage = with_engine_options(Stage("any", kind, ""))
        found = [(name, default, stage.options_doc[name]) for name, default in stage.defaults.items()]
        found += [(name, it.default, it.doc) for name, it in limits_of(kind).items()]
        return [[f"`{name}`", shown(name, default), doc] for name, default, doc in found]

    fields = dataclasses.fields(DeploymentLimits)
    return {
        "server": [
            [f"`{it.name}`", shown(it.name, it.default), it.metadata["doc"]] for it in dataclasses.fields(Limits)
        ],
        "deployment": [[f"`{it.name}`", shown(it.name, it.default), it.metadata["doc"]] for it in fields],
        "autoregressive": of_stage("autoregressive"),
        "generation": of_stage("generation"),
        "codec": [[f"`{name}`", shown(name, it), CODEC_DOC[name]] for name, it in CODEC_DEFAULTS.items()],
        "media": [[f"`{name}`", shown(name, it), MEDIA.options_doc[name]] for name, it in MEDIA.defaults.items()],
    }


def test_readme_lists_every_limit_with_its_default() -> None:
    documented = rows("Limits and defaults")
    expected = [row for table in limit_rows().values() for row in table]
    missing = [row for row in expected if row not in documented]
    assert not missing, "the README lacks:\n" + "\n".join(f"| {' | '.join(row)} |" for row in missing)
    unknown = [row for row in documented if row not in expected]
    assert not unknown, f"the README has what the code has not: {unknown}"


def test_readme_lists_every_endpoint() -> None:
    documented = {endpoint for row in rows("Endpoints") for endpoint in re.findall(r"`([A-Z]+ /[^`]*)`", row[0])}
    served = {f"{method} {re.sub(r'<(?:path:)?name>', '{id}', path)}" for method, path, _ in ROUTES}
    assert documented == served


def test_readme_publishes_the_accepted_no_ops() -> None:
    documented = {row[0]: row[1] for row in rows("Fields that change nothing")}
    expected: dict[str, str] = {}
    for kind in (ChatRequest, CompletionRequest, AssistantMessage, SpeechRequest, TranscriptionRequest):
        expected |= {f"`{name}`": why for name, why in accepted_no_ops(kind).items()}
    assert documented == expected


def test_readme_explains_why_connections_end() -> None:
    (table,) = re.findall(r"^\| reason \| \|\n\|---\|---\|\n((?:\|.*\n)+)", README.read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", re.sub(r" \|.*", "", table))) == sorted(get_args(Reason))


def test_readme_commands_have_the_options_that_it_shows() -> None:
    used = []
    for block in blocks("README.md", "sh"):
        used += re.findall(r"^omni-actors +(\w+)(.*?)(?:#.*)?$", block, re.MULTILINE)
    assert {name for name, _ in used} >= {"serve", "run", "explain", "bench"}
    for name, rest in used:
        context = click.Context(cli)
        command = cli.get_command(context, name)
        assert command is not None, name
        # Parses and converts everything, runs nothing.
        words = shlex.split(rest)
        parsed = command.make_context(name, words.copy())
        if isinstance(command, click.Group):
            below = command.get_command(parsed, words[0])
            assert below is not None, words
            below.make_context(words[0], words[1:], parent=parsed)


def test_readme_deploy_file_is_valid(tmp_path: Path) -> None:
    (source,) = blocks("README.md", "yaml")
    path = tmp_path / "deploy.yaml"
    path.write_text(source)
    plan = resolve(overlay=path)
    assert plan.served_model_name == "assistant"
    assert plan.stage("llm").replicas == 2


def test_readme_actor_example_restarts_its_actor() -> None:
    (source,) = [block for block in blocks("README.md", "python") if "open_supervisor" in block]
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    first, crash, last = done.stdout.splitlines()
    assert (first, last) == ("2 5", "7")
    assert "counter" in crash
