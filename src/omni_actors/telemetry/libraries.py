"""Console output of libraries goes through the log: their warnings, and the lines of their loggers."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import PurePath
from typing import TextIO

log = logging.getLogger("py.warnings")


def take_over() -> None:
    """Keep the loggers of this process from writing to the console beside the root's handlers, whenever their library
    is imported, and turn Python's warnings into lines of the logger ``py.warnings``.

    Call this function only in a process of this project's own: a server, a command, a worker.
    """
    logging.setLoggerClass(LibraryLogger)
    for logger in list(logging.root.manager.loggerDict.values()):
        if type(logger) is logging.Logger:
            logger.__class__ = LibraryLogger
            for handler in [it for it in logger.handlers if _is_console(it)]:
                logger.removeHandler(handler)
                logger.addHandler(handler)
    warnings.showwarning = _show


class LibraryLogger(logging.Logger):
    """A logger that takes no handler for the console.

    Instead the logger's records go on to its parent, even if the library has turned propagation off: libraries that
    write to the console themselves keep their records from the root's handlers, so that no line would come twice.
    """

    _meant_for_console = False

    def addHandler(self, handler: logging.Handler) -> None:
        if _is_console(handler):
            self._meant_for_console = True
        else:
            super().addHandler(handler)

    @property
    def propagate(self) -> bool:  # type: ignore[override]
        return self._meant_for_console or bool(self.__dict__["propagate"])

    @propagate.setter
    def propagate(self, value: bool) -> None:
        self.__dict__["propagate"] = value


def _is_console(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is it for it in streams if it is not None)


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Replace :func:`warnings.showwarning`: write one line, with the end of the file's path."""
    if file is not None:
        file.write(warnings.formatwarning(message, category, filename, lineno, line))
        return
    said = " ".join(str(message).split())
    log.warning("%s: %s (%s:%d)", category.__name__, said, "/".join(PurePath(filename).parts[-2:]), lineno)
