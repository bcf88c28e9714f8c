"""``make setup`` makes a whole environment from what a machine has."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_ENSUREPIP = """#!/bin/bash
if [ "$1 $2" = "-m venv" ] && [ "$3" != --without-pip ]; then
    {python} -m venv --without-pip "${{@:3}}"
    echo "The virtual environment was not created successfully because ensurepip is not available."
    exit 1
fi
exec {python} "$@"
"""
"""Debian's python3, beside python3-pip but without python3-venv."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def set_up(checkout: Path, python: Path) -> None:
    """Run ``make setup`` where pip finds itself and nothing else: it goes as far as the first package."""
    ensurepip = pytest.importorskip("ensurepip", reason="its wheel of pip is needed for a test without an index")
    ours = ("PIP_", "MAKE", "VENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(Path(ensurepip.__path__[0]) / "_bundled"),
    }
    done = subprocess.run(
        ["make", "setup", f"PYTHON={python}"], cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert "No matching distribution found for torch" in done.stderr, done.stdout + done.stderr


def has_pip(checkout: Path) -> bool:
    python = checkout / ".venv/bin/python"
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0


def test_without_ensurepip_the_machines_pip_is_enough(checkout: Path) -> None:
    python = checkout / "python3.11"
    python.write_text(WITHOUT_ENSUREPIP.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    set_up(checkout, python)
    assert has_pip(checkout)


def test_an_environment_whose_making_was_interrupted_is_made_whole(checkout: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True)
    assert not has_pip(checkout)
    set_up(checkout, Path(sys.executable))
    assert has_pip(checkout)
