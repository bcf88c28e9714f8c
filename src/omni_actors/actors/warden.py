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
"""Seconds for which the warden waits until the killed groups have ended.

A process in uninterruptible sleep may need long."""


class Member(NamedTuple):
    """A process of a group, as ``/proc`` shows it."""

    pid: int
    parent: int
    zombie: bool


def _look(pid: int, group: int) -> Member | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the command in parentheses and may itself hold blanks and parentheses.
            state, parent, pgrp, session = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError, PermissionError, ValueError):
        return None  # the process has ended, or is a stranger's
    return Member(pid, int(parent), state in b"ZX") if group in (int(pgrp), int(session)) else None


def members(group: int) -> list[Member]:
    """Return the processes whose process group *or session* has this number.

    The session counts too, so that a descendant is found that moved to a process group of its own, like a shell's job.
    """
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [member for pid in pids if (member := _look(pid, group))]


def kill_group(group: int, leader: int) -> list[int]:
    """Send SIGKILL to all members of the group.

    Zombies that the calling process inherited (a container's first process inherits orphans) are reaped, except the
    leader.

    Args:
        group: The number of the process group and of the session.
        leader: The pid of the group's leader, which is signalled and otherwise left to the caller.

    Returns:
        A pidfd, owned by the caller, for each member beside the leader that was still alive. A pidfd becomes readable
        when its process has ended. An empty list means that no member is left.

    Raises:
        OSError: No descriptor is free to look at processes. The group has received the signal by then.
    """
    # The kernel signals every member at once, also a member that is forking at this moment.
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
            # Look again, now that the pidfd holds the process: its number may have passed to a stranger in between.
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
    """Run the warden: follow the owner's lines until the owner is gone, then kill the groups in the warden's care."""
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
    # The owner's last lines before its death are still in the socket: read all of them.
    channel.setblocking(False)
    with contextlib.suppress(OSError):
        while data := channel.recv(65536):
            rest += data
    _apply(rest, groups)
    _end(groups)


def _obey(channel: socket.socket, poll: select.poll, groups: set[int]) -> bytes:
    """Follow the owner's lines until the owner is gone; return the incomplete last line."""
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
    # First the signals to all groups; the looking comes after. A group whose leader is already reaped keeps its number
    # while it has members. An empty group frees its number, but the kernel gives numbers out in a circle, and only
    # milliseconds have passed.
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
