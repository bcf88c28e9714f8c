"""Fetching a public checkpoint, seen from the process that asks for the checkpoint."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from omni_actors.models.weights.fetch import unavailable
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.protocol.errors import OmniError, not_found
from omni_actors.telemetry.opt_out import quiet_environment

ALIVE_S = 0.5
"""Seconds between two looks at whether the checkpoint is still wanted."""


class Reporter(Protocol):
    """Is told how far a download is."""

    def start(self, name: str, files: int, size: int) -> None:
        """The download of ``files`` files with ``size`` bytes in all begins."""

    def file(self, name: str, done: int, total: int) -> None:
        """A file has come so far."""

    def say(self, text: str) -> None:
        """Tell the operator something else."""


Patterns = Callable[[Path], Sequence[str]]
"""What further files a checkpoint's pipeline reads, given the folder with its small files. May raise to end it there.
"""


def download(
    name: str,
    reporter: Reporter,
    *,
    revision: str | None = None,
    check: bool = False,
    patterns: Patterns = lambda folder: (),
    wanted: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch the missing or damaged files of a public checkpoint. Returns the folder of the snapshot.

    ``check`` reads every byte of existing files. ``wanted`` is called now and then, and raises to end the download.
    Blocks, possibly for hours. In any kind of end no process is left, and received parts of files are kept: the next
    call continues from there. Raises :class:`OmniError` with the action to take.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise unavailable(
            f"Fetching '{name}' needs the hub's client: pip install 'omni-actors[torch]', or give the folder where it "
            "lies in place of the name."
        )
    with tempfile.TemporaryFile() as said, _child(said) as child:
        asked = {"name": name, "revision": revision, "check": check, "parent": os.getpid()}
        _send(child, asked)
        for event in _events(child, wanted):
            match event.pop("event"):
                case "waiting":
                    reporter.say(f"{name}: waiting for another process that fetches it")
                case "described":
                    _send(child, {"patterns": list(patterns(Path(event["folder"])))})
                case "total":
                    reporter.start(name, event["files"], event["bytes"])
                case "file":
                    reporter.file(event["name"], event["done"], event["total"])
                case "damaged":
                    reporter.say(f"{name} is damaged, and the file is fetched anew. {event['text']}")
                case "error":
                    raise _failure(name, revision, event["kind"], event["message"])
                case "done":
                    return Path(event["folder"])
        child.wait()
        said.seek(0)
        tail = "\n".join(said.read().decode(errors="replace").strip().splitlines()[-15:])
    raise unavailable(f"The process that fetches '{name}' has ended (exit status {child.returncode}):\n{tail}")


def _failure(name: str, revision: str | None, kind: str, message: str) -> OmniError:
    if kind == "not_found":
        return not_found(message, code="weights_not_found")
    again = f"{PULL_COMMAND} {name}" + (f" --revision {revision}" if revision else "")
    if kind in ("unreachable", "hub"):
        message += f" The files that were fetched so far are kept; to continue, run: {again}"
    elif kind in ("full", "damaged", "gated", "token"):
        message += f" Then run: {again}"
    return unavailable(message)


@contextmanager
def _child(said: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process for the hub; the process has ended when the block is left."""
    online = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}  # a program that is offline does not come here
    environment = quiet_environment({**online, "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    command = [sys.executable, "-m", "omni_actors.models.weights.hub.child"]
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for end in (child.stdin, child.stdout):
            if end is not None:
                end.close()


def _send(child: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        pass  # it has ended: what it said before tells why


def _events(child: subprocess.Popen[bytes], wanted: Callable[[], None]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    descriptor = child.stdout.fileno()
    held = b""
    while True:
        wanted()
        if not select.select([descriptor], [], [], ALIVE_S)[0]:
            continue
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *lines, held = (held + piece).split(b"\n")
        yield from map(json.loads, lines)
