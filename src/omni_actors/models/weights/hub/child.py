"""The process that talks with the hub: ``python -m omni_actors.models.weights.hub.child``.

It reads one line of JSON from its standard input, what to fetch::

    {"name": "organisation/name", "revision": null, "check": false, "parent": 4711}

and writes lines of JSON to its standard output:

- ``{"event": "waiting"}``: another process fetches the same repository;
- ``{"event": "described", "folder": …}``: the small files are there. It waits for a line ``{"patterns": […]}``, the
  further files that are needed; at the end of its input it ends without fetching weights;
- ``{"event": "total", "files": …, "bytes": …}``: what is to be fetched now;
- ``{"event": "file", "name": …, "done": …, "total": …}``: bytes of one file, several times a second;
- ``{"event": "damaged", "text": …}``: a file was not what it should be, and is fetched again;
- ``{"event": "error", "kind": …, "message": …}`` or ``{"event": "done", "folder": …}`` at last.

It is killed when its parent ends. What it has of a file by then is kept, and the next one goes on from there.
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
