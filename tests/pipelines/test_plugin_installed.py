"""The example pipeline, installed from its wheel among broken plug-ins, as an operator and a client meet it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile
from openai import BadRequestError, OpenAI
from tests.demo.server import Server, serving
from tests.harness.ports import free_port
from tests.pipelines.test_plugins import BROKEN
from tests.platforms import distributions
from tests.platforms.plugin_home import ROOT, build_plugin, install, make_home

from omni_actors.cache import CACHE_VARIABLE
from omni_actors.pipelines.registry import GROUP
from omni_actors.plugins.probe import DEADLINE_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.deadline(150)]

KINDS = {
    "sleeps": "it gave no answer in 12 s",
    "exits": "it cannot be imported: SystemExit: no licence",
    "raises": "it cannot be imported: OSError: libodd.so.1",
    "imports torch": "it imports torch in the serving process, which only its workers may",
    "is of another type": "is dict, not a Pipeline",
    "has another name": "its entry point is called",
}
"""What each plug-in does, and what is said of it."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the example, and beside it one broken plug-in of each kind."""
    home = make_home(tmp_path_factory.mktemp("plugin"))
    install(home, build_plugin(tmp_path_factory.mktemp("wheel"), ROOT / "examples" / "pipeline_plugin"))
    (site,) = home.parents[1].glob("lib/python*/site-packages")
    for index, kind in enumerate(KINDS):
        text = BROKEN[kind][0].replace('name="odd"', f'name="odd{index}"')
        distributions.install(site, f"odd{index}", text, group=GROUP, attribute="PIPELINE")
    return home


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    # Torch takes its seconds: who imports it must have the time to be found out.
    return {CACHE_VARIABLE: str(tmp_path_factory.mktemp("cache")), DEADLINE_VARIABLE: "12"}


def command(python: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    said = [str(python), "-m", "omni_actors", *arguments]
    return subprocess.run(said, cwd=python.parent, env=kept | environment, capture_output=True, text=True)


def test_the_installed_wheel_passes_the_conformance_kit(python: Path, tmp_path: Path) -> None:
    """By the example's own test, copied to where nothing but the installed package can be imported."""
    for name in ("conftest.py", "test_conformance.py"):
        shutil.copy(ROOT / "examples" / "pipeline_plugin" / "tests" / name, tmp_path)
    where = "import omni_tones; print(omni_tones.__file__)"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    place = subprocess.run([python, "-c", where], cwd=tmp_path, env=kept, capture_output=True, text=True, check=True)
    assert Path(place.stdout.strip()).is_relative_to(python.parents[1])
    plain = ["-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:schemathesis"]
    said = [str(python), "-m", "pytest", "-q", *plain, "test_conformance.py"]
    done = subprocess.run(said, cwd=tmp_path, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_broken_plugins_are_one_line_each_and_other_folders_are_planned(
    python: Path, environment: dict[str, str], tiny_model: Callable[[str], Path]
) -> None:
    folder = tiny_model("qwen3-asr")
    for _ in range(2):  # the second time by what was found the first time
        done = command(python, environment, "explain", str(folder), "--json")
        lines = done.stderr.splitlines()
        for index, (kind, words) in enumerate(KINDS.items()):
            (line,) = [it for it in lines if f"'odd{index}'" in it]
            assert f"pipeline plugin 'odd{index}' of odd{index}-hardware 1.0" in line, kind
            assert words in line
        assert json.loads(done.stdout)["pipeline"] == "qwen3-asr"
    refused = command(python, environment, "explain", "odd0")
    assert refused.returncode != 0
    assert "pipeline plugin 'odd0' of odd0-hardware 1.0" in refused.stderr + refused.stdout


def test_doctor_lists_each_plugin_with_what_was_found(python: Path, environment: dict[str, str]) -> None:
    done = command(python, environment, "doctor", "--platform", "cpu", "--json", "--port", str(free_port()))
    found = {it["subject"]: it for it in json.loads(done.stdout)["sections"]["pipelines"]}
    assert found["tones"]["found"] == "omni-actors-tones 0.1.0: usable: serve it by its name"
    for index, words in enumerate(KINDS.values()):
        assert found[f"odd{index}"]["verdict"] == "warning"
        assert found[f"odd{index}"]["found"].startswith(f"odd{index}-hardware 1.0: broken: ")
        assert words in found[f"odd{index}"]["found"]


@pytest.fixture(scope="module")
def server(python: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served"), "tones", python=python, environment=environment) as made:
        yield made


def said(server: Server, text: str, **extra: object) -> int:
    """Frames of the answer to the official SDK."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.audio.speech.create(
            model="tones", voice="keypad", input=text, response_format="wav", extra_body=extra or None
        )
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert rate == 8000
    return len(samples)


def test_a_familys_own_parameters_are_reached_over_http(server: Server) -> None:
    assert said(server, "0123") == 4 * 8 * 150
    for field in ("model_parameters", "vllm_xargs"):
        assert said(server, "0123", **{field: {"tone_ms": 40, "gap_ms": 10}}) == 4 * 8 * 50
    assert said(server, "0123", model_parameters={}) == 4 * 8 * 150


@pytest.mark.parametrize(
    ("extra", "param", "words"),
    [
        ({"model_parameters": {"tone_m": 40}}, "model_parameters.tone_m", "did you mean 'tone_ms'?"),
        ({"vllm_xargs": {"tone_ms": "40"}}, "vllm_xargs.tone_ms", "takes a whole number from 20 to 1000"),
        ({"model_parameters": {"tone_ms": 10}}, "model_parameters.tone_ms", "takes a whole number from 20 to 1000"),
        ({"model_parameters": {"level": 1.5}}, "model_parameters.level", "takes a number from 0 to 0.5"),
        ({"model_parameters": [1]}, "model_parameters", "Expected"),
        ({"model_parameters": {}, "vllm_xargs": {}}, "vllm_xargs", "are the same field"),
        ({"tone_ms": 40}, "tone_ms", "Unknown field 'tone_ms'"),
    ],
)
def test_parameters_that_the_family_does_not_take_are_refused_by_name(
    server: Server, extra: dict[str, object], param: str, words: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        said(server, "1", **extra)
    assert refused.value.param == param
    assert words in str(refused.value)
