"""The program counts words, survives a text that kills its reader, and leaves no process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "word_count.py"


def test_a_text_that_kills_its_reader_costs_one_answer() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    tree, told = lines[:5], lines[5:]
    assert tree == [
        "word-count [running]",
        "  counters [running]",
        "    counter-0 [running] 0/256",
        "    counter-1 [running] 0/256",
        "  desk [running] 0/256",
    ]
    assert told[0] == "4 words"
    assert told[-1] == "2 words"
    assert sorted(told[1:-1]) == [
        "counter-0 crashed; crashes so far: 2",
        "counter-1 crashed; crashes so far: 1",
        "refused: no counter survives 'a text to crash on'",
    ]
    assert done.stderr.count("was killed by SIGKILL (restart in 0.1 s)") == 2
