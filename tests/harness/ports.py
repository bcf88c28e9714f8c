"""TCP ports for servers that tests start as processes of their own."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000
"""Below Linux's default range of ephemeral ports, so that no outgoing connection and no server on port 0 gets one."""

_held: list[int] = []


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free and that no other process of these tests is given.

    A server binds its port seconds after its number was chosen. If another test got the same number meanwhile, one
    of the two servers could not start, and its test would talk to the other one until that ended.
    """
    folder = Path(tempfile.gettempdir()) / f"omni-actors-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in random.SystemRandom().sample(range(FIRST, LAST), LAST - FIRST):
        lock = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        _held.append(lock)  # until this process ends
        return port
    raise OSError(f"no TCP port between {FIRST} and {LAST} is free")
