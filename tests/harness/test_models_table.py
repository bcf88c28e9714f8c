"""The README's table of models has what the registry has."""

from __future__ import annotations

import pytest
from tests.harness.test_docs import rows

from omni_actors.models.tiny import FAMILIES
from omni_actors.pipelines.registry import Registry

REGISTRY = Registry.installed([])
SERVED = sorted(REGISTRY.targets.keys() - {"stub"})


@pytest.mark.parametrize("name", SERVED)
def test_a_pipeline_has_a_row_with_its_checkpoints(name: str) -> None:
    table = {row[0]: row[1] for row in rows("Models")}
    assert f"`{name}`" in table
    for checkpoint in REGISTRY.load(name).checkpoints:
        assert f"`{checkpoint}`" in table[f"`{name}`"]


def test_no_row_is_about_what_is_not_there() -> None:
    assert {row[0].strip("`") for row in rows("Models")} <= set(SERVED)


def test_every_family_with_checkpoints_can_be_tried_with_a_tiny_one() -> None:
    real = {name for name in SERVED if REGISTRY.load(name).checkpoints}
    assert real <= FAMILIES.keys()
