"""Weights that are trained on this machine: pulled, interrupted, continued, and refused."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.models.weights.shelf import CONTENT, only_from, put_on_shelf

from omni_actors.models.omni_demo import pipeline as demo
from omni_actors.models.weights import cache, catalogue
from omni_actors.models.weights import cli as commands
from omni_actors.models.weights.catalogue import DIGITS, Weights
from omni_actors.models.weights.cli import models_group
from omni_actors.models.weights.pull import bring
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError

pytestmark = pytest.mark.process

pull = import_module("omni_actors.models.weights.pull")  # the package has a function of that name


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Weights that a stand-in trains in 4 steps; the text encoder that they need can be fetched from a folder."""
    only_from(tmp_path / "shelf", tmp_path / "cache", monkeypatch)
    encoder = replace(put_on_shelf(tmp_path / "shelf", "tiny-weights", CONTENT), name="demo/llm", folder="llm")
    weights = replace(DIGITS, recipe="tests.models.weights.trainer", steps=4)
    for module in (cache, pull, commands, catalogue):
        monkeypatch.setattr(module, "DEMO", (encoder,))
    for module in (pull, commands, catalogue):
        monkeypatch.setattr(module, "BESIDE", (weights,))
    monkeypatch.setattr(catalogue, "ALL", (encoder, weights))
    monkeypatch.setattr(demo, "DIGITS", weights)
    return weights


def encoder_of(weights: Weights) -> Path:
    (name,) = weights.after
    return cache.folder_of(catalogue.named(name))


def models(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(models_group, arguments)
    return done.exit_code, done.output


def test_pull_fetches_what_the_training_reads_and_tells_loss_and_time(digits: Weights) -> None:
    told: list[tuple[str, str, int, int | None]] = []
    chosen = pull.select(["demo/llm", "digits"])
    bring(chosen, lambda weights, step, done=0, total=None: told.append((weights.name, step, done, total)))
    assert cache.state(digits) == "ready"
    assert ("digits", "training, loss 0.500, 3 min left", 2, 4) in told
    assert told[-1] == ("digits", "ready", 4, 4)
    assert {path.name for path in cache.cache_root().iterdir()} == {cache.demo_folder().name, "lock"}
    made = json.loads((cache.folder_of(digits) / "omni_weights.json").read_text())
    assert [it["name"] for it in made["after"]] == ["demo/llm"]


def test_without_the_text_encoder_the_error_names_the_command(digits: Weights) -> None:
    code, output = models("pull", "digits")
    assert code == 1
    assert "trained with those of demo/llm, which are not on this machine" in output
    assert "Run: python -m omni_actors models pull demo/llm digits" in output
    assert not cache.cache_root().exists()


def test_without_a_module_the_error_names_the_package_and_the_extra(
    digits: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else object())
    with pytest.raises(OmniError) as caught:
        bring([digits])
    message = caught.value.info.message
    assert "need what is not installed here: scikit-learn. Run: pip install 'omni-actors[diffusion]', then: " in message


def test_the_commands_know_trained_weights(digits: Weights) -> None:
    assert models("pull", "demo/llm", "digits")[0] == 0
    row = next(line for line in models("list")[1].splitlines() if line.startswith("digits"))
    assert "ready" in row
    assert "trained here" in row
    (cache.folder_of(digits) / "model_index.json").write_text("{}")
    assert "is damaged and is made anew" in models("pull", "--check", "digits")[1]
    assert cache.state(digits) == "ready"
    assert models("rm", "--yes", "digits")[0] == 0
    assert cache.state(digits) == "missing"
    assert cache.state(catalogue.named("demo/llm")) == "ready"


def test_a_training_that_is_killed_is_continued(digits: Weights) -> None:
    bring([catalogue.named("demo/llm")])
    (encoder_of(digits) / "wait").touch()
    program = f"""
import os, signal
from omni_actors.models.weights import cache, catalogue
from omni_actors.models.weights.catalogue import Weights
from omni_actors.models.weights.pull import bring
encoder, digits = {catalogue.named("demo/llm")!r}, {digits!r}
cache.DEMO, catalogue.ALL = (encoder,), (encoder, digits)
def report(weights, step, done=0, total=None):
    done == 2 and os.kill(os.getpid(), signal.SIGKILL)
bring([digits], report)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=25)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert cache.state(digits) == "missing"
    assert {row["name"] for row in json.loads(models("du", "--json")[1])} == {"demo", "training"}
    (encoder_of(digits) / "wait").unlink()
    bring([digits])
    assert json.loads((cache.folder_of(digits) / "model_index.json").read_text()) == {"first": 2}
    assert not (cache.cache_root() / "training").exists()


def test_an_interrupt_ends_the_training_process(digits: Weights) -> None:
    bring([catalogue.named("demo/llm")])
    (encoder_of(digits) / "wait").touch()

    def interrupted(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring([digits], interrupted)
    assert cache.state(digits) == "missing"
    (encoder_of(digits) / "wait").unlink()
    bring([digits])  # the lock is free: no process has it any more
    assert cache.state(digits) == "ready"


def test_a_training_that_fails_says_why(digits: Weights) -> None:
    bring([catalogue.named("demo/llm")])
    (encoder_of(digits) / "fail").touch()
    with pytest.raises(OmniError, match=r"(?s)Training .* failed.*no digits in sight.*models pull digits"):
        bring([digits])
    assert cache.state(digits) == "missing"


def test_another_text_encoder_needs_another_training(digits: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(pull.select(["demo/llm", "digits"]))
    encoder = replace(catalogue.named("demo/llm"), revision=2)
    monkeypatch.setattr(catalogue, "ALL", (encoder, digits))
    assert cache.state(digits) == "missing"


def test_the_demo_makes_pictures_once_the_digits_are_there(digits: Weights) -> None:
    plan = resolve("demo", platform="cpu")
    assert "image" not in plan.tasks
    assert plan.notes == (demo.NO_PICTURES,)
    assert "models pull digits" in demo.NO_PICTURES
    bring(pull.select(["demo/llm", "digits"]))
    plan = resolve("demo", platform="cpu")
    assert plan.notes == ()
    assert plan.tasks["image"].outputs == {"image": "pictures"}
    assert plan.stage("image").model == str(cache.folder_of(digits))
    assert [stage.name for stage in plan.stages if stage.threads > 1 and stage.name in ("image", "pictures")] == []
