"""Logs without a reader hold up no process."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from omni_actors.telemetry import logs


@pytest.fixture
def handler() -> Iterator[tuple[logs.PatientHandler, int]]:
    """Return a handler that writes to a pipe, and the pipe's other end."""
    reading, writing = os.pipe()
    made = logs.PatientHandler(writing)
    yield made, reading
    made.close()
    os.close(reading)
    os.close(writing)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("any", logging.INFO, "", 0, message, (), None)


def test_lines_come_in_order(handler: tuple[logs.PatientHandler, int]) -> None:
    made, reading = handler
    for number in range(100):
        made.handle(record(f"line {number}"))
    made.flush()
    assert os.read(reading, 1 << 20).decode().splitlines() == [f"line {number}" for number in range(100)]


def test_a_reader_that_stops_holds_up_no_logger(
    handler: tuple[logs.PatientHandler, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, reading = handler
    monkeypatch.setattr(logs, "ROOM", 200)
    begun = time.monotonic()
    for number in range(1000):
        made.handle(record(f"{number:04} " + "x" * 2000))
    made.flush()  # waits, and gives up
    assert time.monotonic() - begun < 5
    at, counted = 0, False
    with os.fdopen(os.dup(reading)) as lines:
        while at < 1000:  # each in its place, or counted there
            line = lines.readline()
            missing = re.fullmatch(r"\((\d+) lines were lost because the log's reader is too slow\)\n", line)
            if missing is None:
                assert line[:4] == f"{at:04}"
                at += 1
            else:
                at += int(missing[1])
                counted = True
        assert at == 1000
        assert counted
        made.handle(record("again"))
        assert lines.readline() == "again\n"


def test_lines_that_cannot_be_written_are_lost_without_an_error() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    made = logs.PatientHandler(full)
    made.handle(record("lost"))
    made.flush()
    os.dup2(written := os.memfd_create("log"), full)
    made.handle(record("kept"))
    made.close()
    assert os.pread(written, 100, 0) == b"kept\n"
    os.close(full)
    os.close(written)


LIBRARIES = """
import logging, sys, warnings
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler())
early.propagate = False
from omni_actors.telemetry import logs
logs.configure(process="worker")
late = logging.getLogger("late")
late.propagate = False
late.addHandler(logging.StreamHandler(sys.stdout))
below = logging.getLogger("late.below")
below.addHandler(logging.StreamHandler())
below.propagate = False
silent = logging.getLogger("silent")
silent.propagate = False
for logger in (early, late, below, silent):
    logger.warning("of %s", logger.name)
warnings.warn("two\\nlines", UserWarning)
"""


def test_console_output_of_libraries_goes_through_the_log() -> None:
    """Each line comes once, whether the library is imported before or after."""
    done = subprocess.run([sys.executable, "-c", LIBRARIES], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == ""
    said = [re.sub(r"^\S+Z WARNING worker\[\d+\] ", "", line) for line in done.stderr.splitlines()]
    assert said == [
        "early -: of early",
        "late -: of late",
        "late.below -: of late.below",
        "silent -: of silent",
        "py.warnings -: UserWarning: two lines (<string>:18)",
    ]


REAL = """
from omni_actors.telemetry import logs
logs.configure(process="worker")
from transformers.utils import logging as transformers_logging
transformers_logging.get_logger("transformers.models").warning("said")
"""


@pytest.mark.deadline(60)
def test_transformers_logs_through_it() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, timeout=55, check=True)
    lines = [line for line in done.stderr.splitlines() if "said" in line]
    assert [re.sub(r"^\S+Z WARNING worker\[\d+\] ", "", line) for line in lines] == [
        "transformers.models -: said",
    ]
    assert done.stdout == ""
