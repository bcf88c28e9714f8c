"""Make the package importable where it is not installed, and declare the markers of omni-actors' own tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SOURCES = str(Path(__file__).parents[1] / "src")
sys.path.insert(0, SOURCES)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deadline(seconds): how long a test may take, for whoever enforces it.")
    config.addinivalue_line("markers", "slow: takes more than a few seconds.")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings but the test's own, and let other processes import the platform."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (SOURCES, os.environ.get("PYTHONPATH")))))
    for name in [name for name in os.environ if name.startswith("OMNI_SIM_")]:
        monkeypatch.delenv(name)
