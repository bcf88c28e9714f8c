"""One line per event, the same in every process, with the request that it belongs to."""

from __future__ import annotations

import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import TextIO

current_request: ContextVar[str] = ContextVar("omni_actors_request", default="-")
"""The id of the request that this task (or this step of a worker) works for."""

_SECRET = re.compile(r"(?i)\b(bearer\s+|api[_-]?key['\"]?\s*[=:]\s*['\"]?|sk-)[^\s'\",;]+")


class LineFormatter(logging.Formatter):
    """``2026-01-01T12:00:00.123Z INFO serving[123] omni_actors.http req-…: message``. What looks like a key is masked,
    in tracebacks too."""

    def __init__(self, process: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {process}[%(process)d] %(name)s %(request)s: %(message)s"
        )
        self.datefmt = "%Y-%m-%dT%H:%M:%S"
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        record.request = getattr(record, "request", None) or current_request.get()
        return _SECRET.sub(lambda found: found.group(1) + "***", super().format(record))


def configure(level: str = "INFO", process: str = "serving", stream: TextIO | None = None) -> None:
    """Send the logs of this process to ``stream`` (stderr). Calling it again replaces the handler.

    ``process`` names it in each line (``serving``, or a worker's stage). A record may name its request by
    ``extra={"request": id}``; else :data:`current_request` does.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(process))
    root = logging.getLogger()
    for old in [it for it in root.handlers if isinstance(it.formatter, LineFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("omni_actors").setLevel(level.upper())
