"""The child process of :func:`omni_actors.plugins.subprocess_probe.run_probes`.

The module uses the standard library only: it runs as a file of its own, without the package, and so starts as fast as
Python does.
"""

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
    """Write the result of the function ``answer`` of ``script`` as one line of JSON to ``descriptor``, and end the
    process.

    The line is ``{"answer": …}``, or ``{"error": "ImportError: …"}`` for any exception, SystemExit included. Threads
    and exit handlers of the script are neither run nor waited for.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before PDEATHSIG was set
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
    """Return ``ImportError: No module named x``, also for an exception whose text cannot be made."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # the text of an exception is foreign code too
        return type(error).__name__


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    main(int(arguments[0]), int(arguments[1]), arguments[2], arguments[3])
