"""The programs of ``docs/embedding.md`` run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "embedding.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_there_is_a_program_of_every_kind() -> None:
    for word in ("import Omni,", "open_omni_asyncio(", "start_guest_run", "serve_http("):
        assert sum(word in program for program in PROGRAMS) == 1


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_a_program_runs(place: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[place]], cwd=tmp_path, capture_output=True, text=True, timeout=25, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr
