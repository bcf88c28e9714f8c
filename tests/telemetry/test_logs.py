"""Logs that nobody reads hold nobody up."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator

import pytest

from omni_actors.telemetry import logs


@pytest.fixture
def handler() -> Iterator[tuple[logs.PatientHandler, int]]:
    """One that writes to a pipe, and the pipe's other end."""
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


def test_a_reader_that_stands_still_holds_nobody_up(
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
            missing = re.fullmatch(r"\((\d+) lines found no room\)\n", line)
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


def test_what_cannot_be_written_is_lost_and_no_more() -> None:
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
