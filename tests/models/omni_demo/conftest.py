"""The demo's stages, loaded once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.omni_demo.harness import Stage, Voice


@pytest.fixture(scope="session")
def voice(demo_weights: Path) -> Voice:
    return Voice(Stage("acoustic", demo_weights), Stage("vocoder", demo_weights))


@pytest.fixture(scope="session")
def recogniser(demo_weights: Path) -> Stage:
    return Stage("asr", demo_weights)
