"""The child's side of :func:`omni_actors.plugins.inquiry.ask`. Standard library only: it runs as a file of its own,
without the package, so that it starts in the time that Python takes."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int, script: str, question: str) -> None:
    """Answer by what the function ``answer`` of ``script`` returns, as one line of JSON on ``descriptor``, and end.

    ``{"answer": …}``, or ``{"error": "ImportError: …"}`` for whatever was raised, SystemExit too. Nothing that the
    script has left behind is run or waited for.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew that this process follows it
        os._exit(1)
    os.set_inheritable(descriptor, False)
    told = json.loads(question)
    sys.path[:] = told["path"]
    try:
        line = json.dumps({"answer": runpy.run_path(script)["answer"](told["argument"])})
    except BaseException as error:
        line = json.dumps({"error": said(error)})
    _write(descriptor, line.encode() + b"\n")
    os._exit(0)


def said(error: BaseException) -> str:
    """``ImportError: No module named x``, also of an exception that cannot say what it is."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # what an exception says of itself is somebody else's code too
        return type(error).__name__


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    main(int(arguments[0]), int(arguments[1]), arguments[2], arguments[3])
