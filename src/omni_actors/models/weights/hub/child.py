"""The process for all communication with the hub: ``python -m omni_actors.models.weights.hub.child``.

The process reads one line of JSON from standard input, the request::

    {"name": "organisation/name", "revision": null, "check": false, "parent": 4711}

and writes lines of JSON to standard output:

- ``{"event": "waiting"}``: another process fetches the same repository;
- ``{"event": "described", "folder": …}``: the small files are there. The process then waits for a line
  ``{"patterns": […]}``, the further files to fetch; at the end of input the process ends without fetching weights;
- ``{"event": "total", "files": …, "bytes": …}``: the files and bytes to fetch now;
- ``{"event": "file", "name": …, "done": …, "total": …}``: bytes of one file, several times a second;
- ``{"event": "damaged", "text": …}``: a file was damaged, and is fetched again;
- ``{"event": "error", "kind": …, "message": …}`` or ``{"event": "done", "folder": …}`` at last.

The process is killed when its parent ends. Received parts of files are kept, and the next process continues from there.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != asked["parent"]:  # it died before the kernel knew that this process follows it
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends this process
    from omni_actors.models.weights.hub.failures import failure_of
    from omni_actors.models.weights.hub.repository import Repository

    try:
        repository = Repository(asked["name"], asked["revision"], bool(asked["check"]), tell)
        with repository.locked():
            folder = repository.describe()
            tell("described", folder=str(folder))
            answer = sys.stdin.readline()
            if not answer:
                return
            repository.complete(json.loads(answer)["patterns"])
        tell("done", folder=str(folder))
    except Exception as error:
        kind, message = failure_of(error, asked["name"], asked["revision"])
        tell("error", kind=kind, message=message)


def tell(event: str, **fields: Any) -> None:
    """Write one line; safe from several threads."""
    line = json.dumps({"event": event, **fields}) + "\n"
    try:
        os.write(1, line.encode())  # at once: a line is shorter than what a pipe takes whole
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
