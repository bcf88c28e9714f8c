"""The tour of "Getting started", and the README's part of it, run as it stands against the real demo."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile
from tests.harness.documents import blocks

PAGE = "docs/getting-started.md"

pytestmark = [pytest.mark.weights, pytest.mark.slow, pytest.mark.deadline(240)]


def block(containing: str) -> str:
    """Return the only code block of the tour in which a text stands."""
    found = [it for language in ("sh", "python") for it in blocks(PAGE, language) if containing in it]
    assert len(found) == 1, f"{len(found)} blocks contain {containing!r}"
    return found[0]


@pytest.mark.parametrize("language", ["sh", "python"])
def test_the_readme_shows_a_part_of_this_tour(language: str) -> None:
    assert set(blocks("README.md", language)) <= set(blocks(PAGE, language))


def run(*command: str, cwd: Path) -> str:
    """Run a command with the environment's programs first on the path, and return its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def url(demo_weights: Path) -> Iterator[str]:
    """Run ``omni-actors serve`` and return its URL; at the end the server must stop when it is told to."""
    command = [sys.executable, "-m", "omni_actors", "serve", "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()  # nothing is printed before it serves; a failed start closes the pipe
            found = re.search(r"http://\S+", line)
            assert found, f"serve said {line!r}"
            yield found[0].rstrip("/")
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()


@pytest.fixture
def shell(url: str, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs a shell block of the tour against the server."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return lambda source: run(
        "bash", "-euo", "pipefail", "-c", source.replace("http://127.0.0.1:8000", url), cwd=tmp_path
    )


def heard(path: Path) -> float:
    """Return the length in seconds of an audio file, which must not be silent."""
    samples, rate = soundfile.read(path)
    assert abs(samples).max() > 0.05
    return float(len(samples) / rate)


def test_a_text_answer_whole_and_streamed(shell: Callable[[str], str]) -> None:
    whole = shell(block('"temperature": 0,\n  "messages"'))
    assert "Paris" in whole
    assert '"total_tokens"' in whole
    streamed = shell(block("include_usage"))
    assert streamed.count("data: ") > 5
    assert "Paris" in "".join(re.findall(r'"content":"([^"]*)"', streamed))
    assert streamed.rstrip().endswith("data: [DONE]")


def test_a_spoken_answer_is_a_playable_file(shell: Callable[[str], str], tmp_path: Path) -> None:
    assert "Paris" in shell(block('"format": "wav"},\n  "messages"'))
    assert 1 < heard(tmp_path / "answer.wav") < 10


def test_speech_transcription_and_a_spoken_question(shell: Callable[[str], str], tmp_path: Path) -> None:
    assert "capital of France" in shell(block("-o question.wav"))
    assert 1 < heard(tmp_path / "question.wav") < 5
    assert "Paris" in shell(block("input_audio"))
    assert 1 < heard(tmp_path / "answer.wav") < 10


def test_openai_sdk(url: str, tmp_path: Path) -> None:
    out = run(sys.executable, "-c", block("from openai import").replace("http://127.0.0.1:8000", url), cwd=tmp_path)
    answer, heard_text = out.strip().rsplit("\n", 1)
    assert "Paris" in answer
    assert "ello there" in heard_text
    assert 0.5 < heard(tmp_path / "hello.mp3") < 4


def test_bench_measures_a_spoken_chat(url: str, tmp_path: Path) -> None:
    command = f"omni-actors bench chat-audio --url {url}/v1 --requests 2 --repeats 1 --warmup 1 --max-tokens 24"
    out = run("bash", "-c", command, cwd=tmp_path)
    assert "2 of 2" in out
    assert "TTFP" in out


def test_without_a_server_in_python(demo_weights: Path, tmp_path: Path) -> None:
    out = run(sys.executable, "-c", block('with Omni("demo")'), cwd=tmp_path)
    assert "Paris" in out
    assert 0.5 < heard(tmp_path / "hello.wav") < 4


def test_without_a_server_in_the_shell(demo_weights: Path, tmp_path: Path) -> None:
    assert "Paris" in run("bash", "-c", block("omni-actors run"), cwd=tmp_path)
