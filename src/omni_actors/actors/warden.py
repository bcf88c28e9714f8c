"""The warden: a small process that kills what its owner leaves behind, however the owner ends.

The warden runs as ``python -I -S warden.py FD OWNER``, is started by
:class:`~omni_actors.actors.warden_handle.WardenHandle`, and needs nothing but the standard library. FD is one end of a
stream socket whose other end only the owner holds; OWNER is the owner's pid. The owner writes lines: ``+N`` puts
process group N into the warden's care, ``-N`` takes the group out of it. (The owner writes ``-N`` *before* it reaps the
group's leader, so that the number still means that group.) When the owner is gone, seen as the end of the socket or by
the owner's pidfd, whichever comes first, the warden kills every group still in its care and ends.

The warden lives in a session of its own and ignores the signals that end an application (a Ctrl-C in the owner's
terminal, a service manager's SIGTERM to the whole service): its work begins when the other processes are gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import NamedTuple

PATIENCE_S = 10.0
"""How long the warden stays to see that what it killed is gone (a process in uninterruptible sleep may need long)."""


class Member(NamedTuple):
    pid: int
    parent: int
    zombie: bool


def _look(pid: int, group: int) -> Member | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command in parentheses and may itself hold blanks and parentheses.
            state, parent, pgrp, session = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return None  # it has ended, or is a stranger's
    return Member(pid, int(parent), state in b"ZX") if group in (int(pgrp), int(session)) else None


def members(group: int) -> list[Member]:
    """The processes whose process group *or session* has this number. With the session looked at too, a descendant is
    found that only moved to a process group of its own, as a shell does with a job."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [member for pid in pids if (member := _look(pid, group))]


def kill_group(group: int, leader: int) -> list[int]:
    """SIGKILL to all members of the group. Returns a pidfd, owned by the caller, for each one beside ``leader`` that
    was still alive: it turns readable when that process has ended. An empty list says that none is left.

    Zombies that fell to the calling process (a container's first process inherits orphans) are reaped, the leader
    excepted. Raises :class:`OSError` when no descriptor is free to look at processes; the group has its signal by then.
    """
    # The kernel gives this to every member at once, also to one that is forking at this moment.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    dying: list[int] = []
    try:
        for member in members(group):
            if member.pid == leader:
                continue
            if member.zombie:
                if member.parent == os.getpid():
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(member.pid, os.WNOHANG)
                continue
            try:
                fd = os.pidfd_open(member.pid)
            except ProcessLookupError:
                continue
            dying.append(fd)
            # Look again, now that the pidfd holds on to it: in between the number may have passed to a stranger.
            if _look(member.pid, group):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            else:
                os.close(dying.pop())
    except OSError:
        for fd in dying:
            os.close(fd)
        raise
    return dying


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    owner = int(sys.argv[2])
    os.set_inheritable(channel.fileno(), False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    rest = b""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    with contextlib.suppress(ProcessLookupError):
        poll.register(os.pidfd_open(owner), select.POLLIN)
    if os.getppid() == owner:
        with contextlib.suppress(OSError):
            channel.send(b"!")
        rest = _obey(channel, poll, groups)
    # What the owner said before it died still lies in the socket: read it all.
    channel.setblocking(False)
    with contextlib.suppress(OSError):
        while data := channel.recv(65536):
            rest += data
    _apply(rest, groups)
    _end(groups)


def _obey(channel: socket.socket, poll: select.poll, groups: set[int]) -> bytes:
    """Follow the owner's lines until it is gone; returns the beginning of a line that it left."""
    buffer = b""
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if channel.fileno() in ready:
            data = channel.recv(65536)
            if not data:
                return buffer
            whole, _, buffer = (buffer + data).rpartition(b"\n")
            _apply(whole, groups)
        elif ready:
            return buffer


def _apply(lines: bytes, groups: set[int]) -> None:
    for line in lines.split():
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))


def _end(groups: set[int]) -> None:
    # First the signals, to all; the looking comes after. A group whose leader is already reaped keeps its number while
    # it has members. An empty one frees it, but the kernel hands numbers out in a circle, and only milliseconds passed.
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    for group in groups:
        while time.monotonic() < deadline and (dying := kill_group(group, group)):
            for fd in dying:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(max(0, int((deadline - time.monotonic()) * 1000)))
                os.close(fd)


if __name__ == "__main__":
    main()
