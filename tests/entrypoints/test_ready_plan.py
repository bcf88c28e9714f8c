"""Before anything is served, all of the demo's weights are there, or what is missing is named."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from omni_actors.entrypoints.commands.deployment import Deployment, ready_plan
from omni_actors.models.omni_demo.pipeline import NO_PICTURES
from omni_actors.models.weights import DEMO
from omni_actors.models.weights.cache import folder_of, marker_of
from omni_actors.pipelines.weights.intact import MARKER
from omni_actors.protocol.errors import OmniError

NAMES = [weights.name for weights in DEMO]


def plan_with(*names: str) -> None:
    """Plan the demo with a cache that holds these weights, where none can be fetched."""
    for weights in DEMO:
        if weights.name in names:
            folder_of(weights).mkdir(parents=True)
            (folder_of(weights) / MARKER).write_text(json.dumps(marker_of(weights)))
    ready_plan(Deployment(None, None, (), "cpu", None, None))


@pytest.fixture(autouse=True)
def empty_cache_and_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.parametrize("absent", NAMES)
@pytest.mark.process
def test_each_missing_part_of_the_demo_is_named_with_the_command(
    absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OmniError, match=rf"run: python -m omni_actors models pull {absent}"):
        plan_with(*(name for name in NAMES if name != absent))
    assert f"({absent}:" in capsys.readouterr().err


@pytest.fixture
def only_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Other tests may have let INFO go to standard error."""
    caplog.set_level(logging.WARNING, "omni_actors")


@pytest.mark.usefixtures("only_warnings")
def test_a_whole_demo_is_ready_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    plan_with(*NAMES)
    assert capsys.readouterr().err == ""


def test_how_to_get_pictures_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "omni_actors")
    plan_with(*NAMES)
    told = [record for record in caplog.records if "pictures" in record.getMessage()]
    assert [(it.levelname, it.getMessage()) for it in told] == [("INFO", NO_PICTURES)]


@pytest.mark.usefixtures("only_warnings")
def test_nothing_is_fetched_for_weights_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tuple(f"stages.{stage}.model={tmp_path}" for stage in ("asr", "llm", "acoustic", "vocoder"))
    ready_plan(Deployment(None, None, own, "cpu", None, None))
    assert capsys.readouterr().err == ""
