"""The log: one line per event, in the same format in every process, with the id of the request."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from contextvars import ContextVar
from typing import TextIO

from omni_actors.telemetry import libraries

current_request: ContextVar[str] = ContextVar("omni_actors_request", default="-")
"""The id of the request for which this task (or this step of a worker) works."""

_SECRET = re.compile(r"(?i)\b(bearer\s+|api[_-]?key['\"]?\s*[=:]\s*['\"]?|sk-)[^\s'\",;]+")


class LineFormatter(logging.Formatter):
    """The format ``2026-01-01T12:00:00.123Z INFO serving[123] omni_actors.http req-…: message``. Texts that look like
    keys are masked, in tracebacks too."""

    def __init__(self, process: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {process}[%(process)d] %(name)s %(request)s: %(message)s"
        )
        self.datefmt = "%Y-%m-%dT%H:%M:%S"
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        record.request = getattr(record, "request", None) or current_request.get()
        return _SECRET.sub(lambda found: found.group(1) + "***", super().format(record))


ROOM = 10_000
"""Lines that may wait to be written."""

FLUSH_S = 0.5
"""Seconds for waiting lines at the end of the process."""


class PatientHandler(logging.Handler):
    """A handler that writes to a descriptor from a thread of its own, so that logging never waits for the reader: a
    stopped terminal, or a pipe whose reader stands still, would hold up the whole process.

    Over :data:`ROOM` waiting lines, further lines are dropped and their number is written in their place; lines that
    cannot be written (a full disk) are lost. :meth:`flush` waits for :data:`FLUSH_S` at most.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: deque[str] = deque()
        self._lost = 0
        self._writing = False
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= ROOM:
                self._lost += 1
            else:
                self._tell_lost()
                self._lines.append(line)
                self._changed.notify_all()

    def _tell_lost(self) -> None:
        if self._lost:
            self._lines.append(f"({self._lost} lines were lost because the log's reader is too slow)")
            self._lost = 0

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, FLUSH_S)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._closed)
                if not self._lines:
                    return
                self._writing = True
                line = self._lines.popleft()
                if not self._lines:
                    self._tell_lost()
            _write(self._descriptor, f"{line}\n".encode(errors="backslashreplace"))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process that shares the descriptor has made it non-blocking
            select.select((), (descriptor,), ())
        except OSError:
            return


def configure(level: str = "INFO", process: str = "serving", stream: TextIO | None = None) -> None:
    """Send the logs of this process to ``stream`` (default: stderr), with the warnings of Python and of libraries. A
    second call replaces the handler.

    Args:
        level: The level of this project's loggers.
        process: The name of the process in each line (``serving``, or a worker's stage).
        stream: A text stream, or ``None`` for stderr.

    A record may name its request by ``extra={"request": id}``; else :data:`current_request` does.
    """
    handler = _handler(stream)
    handler.setFormatter(LineFormatter(process))
    root = logging.getLogger()
    for old in [it for it in root.handlers if isinstance(it.formatter, LineFormatter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("omni_actors").setLevel(level.upper())
    logging.lastResort = handler  # type: ignore[assignment]  # for a logger without a handler and a parent
    libraries.take_over()


def _handler(stream: TextIO | None) -> logging.Handler:
    if stream is not None:
        return logging.StreamHandler(stream)
    try:
        return PatientHandler(sys.stderr.fileno())
    except (AttributeError, io.UnsupportedOperation):  # no stderr, or one without a descriptor
        return logging.StreamHandler(sys.stderr)
