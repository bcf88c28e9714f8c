"""Checks that processes outside of a measurement are idle: a server before its load, a peer beside the measured one.

A process that still works for clients that have left takes CPU from the next measurement, and makes the next figure of
its own look worse.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

REST = 0.05
"""Most of one core that a process may use and be called idle."""

LOOK_S = 0.2
WITHIN_S = 15.0


class NotIdle(Exception):
    """A process still works without requests. The message names the process and its load."""


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, all its threads, without children; 0 if the process has ended."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, IndexError):
        pass
    return total


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for it in found:
        found += parents.get(it, [])
    return found


def busy(pid: int, seconds: float = LOOK_S) -> float:
    """Return the share of one core that a process and its descendants use."""
    return sum(it for _, it in _used(pid, seconds))


def busy_still(pid: int, within_s: float = 2.0) -> float:
    """Return :func:`busy`, once the process rests or has had the time to come to rest."""
    deadline = time.monotonic() + within_s
    while (share := busy(pid)) > REST and time.monotonic() < deadline:
        continue
    return share


def wait_idle(pid: int, name: str, within_s: float = WITHIN_S) -> None:
    """Wait until a process and its descendants rest. Raises :class:`NotIdle`."""
    deadline = time.monotonic() + within_s
    while True:
        used = sorted(_used(pid, LOOK_S), key=lambda it: -it[1])
        share = sum(it for _, it in used)
        if share <= REST:
            return
        if time.monotonic() > deadline:
            raise NotIdle(f"{name} uses {share:.0%} of a core with nothing to do (process {used[0][0]})")


def run_alone(command: Sequence[str], env: Mapping[str, str], cwd: str | Path, within_s: float = 400.0) -> str:
    """Return the output of a peer's program.

    The program runs in a session of its own: a process left behind would take CPU from the next measurement, and is a
    :class:`NotIdle`. All processes of the session are ended in any case.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=env, cwd=cwd, start_new_session=True
    ) as program:
        try:
            output, _ = program.communicate(timeout=within_s)
            left = [it for it in session(program.pid) if it != program.pid]
        finally:
            for it in session(program.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(it, signal.SIGKILL)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command, output)
    if left:
        raise NotIdle(f"{command[0]} has ended, and left processes behind: {left}")
    return output


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def machine_busy(seconds: float = 1.0) -> float:
    """Return the number of cores of the machine that are in use by any process."""
    before = _machine()
    time.sleep(seconds)
    used, total = (after - it for after, it in zip(_machine(), before, strict=True))
    return (os.cpu_count() or 1) * used / max(total, 1)


def _used(pid: int, seconds: float) -> Iterator[tuple[int, float]]:
    before = {it: cpu_ns(it) for it in family(pid)}
    begun = time.monotonic_ns()
    time.sleep(seconds)
    for it in family(pid):
        yield it, max(0, cpu_ns(it) - before.get(it, 0)) / (time.monotonic_ns() - begun)


def _machine() -> tuple[int, int]:
    fields = [int(it) for it in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)
