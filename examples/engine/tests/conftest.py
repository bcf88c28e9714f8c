"""Make the package importable where it is not installed, and declare the markers of omni-actors' own tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

SOURCES = str(Path(__file__).parents[1] / "src")
INSTALLED = importlib.util.find_spec("omni_markov") is not None
if not INSTALLED:
    sys.path.insert(0, SOURCES)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deadline(seconds): how long a test may take, for whoever enforces it.")
    config.addinivalue_line("markers", "slow: takes more than a few seconds.")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import the package."""
    if INSTALLED:
        return
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH")))))
