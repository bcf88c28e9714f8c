"""The tables of models in the README and on its page have the pipelines of the registry."""

from __future__ import annotations

import re

import pytest
from tests.harness.documents import rows

from omni_actors.entrypoints.openai.fields import Refused, marks
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.models.tiny import FAMILIES
from omni_actors.pipelines.registry import UNOFFERED, Registry

REGISTRY = Registry.installed([])
SERVED = sorted(name for name in set(REGISTRY.targets) - UNOFFERED if not name.endswith("-apart"))
"""The pipelines of the tables. ``NAME-apart`` is the same model as several stages."""


@pytest.mark.parametrize("name", SERVED)
def test_a_pipeline_has_a_row_with_its_checkpoints(name: str) -> None:
    table = {row[0]: row[1] for row in rows("docs/models.md")}
    assert f"`{name}`" in table
    for checkpoint in REGISTRY.load(name).checkpoints:
        assert f"`{checkpoint}`" in table[f"`{name}`"]


def test_no_row_names_an_unknown_pipeline() -> None:
    assert {row[0].strip("`") for row in rows("docs/models.md")} <= set(SERVED)


def test_the_readme_names_every_pipeline() -> None:
    named = {name for row in rows("README.md", "What it serves") for name in re.findall(r"`([\w.-]+)`", row[0])}
    assert named >= set(SERVED)


def test_every_family_with_checkpoints_can_be_tried_with_a_tiny_one() -> None:
    real = {name for name in SERVED if REGISTRY.load(name).checkpoints}
    assert real <= FAMILIES.keys()


def test_the_voices_table_has_the_fields_of_a_speech_body() -> None:
    """The table lacks the fields that every body has, and those of the format and of the timing."""
    documented = {name for row in rows("docs/voices.md") for name in re.findall(r"`(\w+)`", row[0])}
    others = {"input", "model", "priority", "response_format", "speed", "stream", "stream_format", "timeout"}
    assert documented == set(SpeechRequest.__struct_fields__) - marks(SpeechRequest, Refused).keys() - others
