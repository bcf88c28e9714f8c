"""Whether what is not being measured rests: a server before its load, a peer beside the one that is measured.

A process that still works for clients that have left takes CPU from whatever is measured next, and makes the next
figure of its own look worse than it is.
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
    """A process still works though nothing is asked of it. The message says which and how much."""


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all its threads, children not included. Of one that has ended it is 0."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, IndexError):
        pass
    return total


def family(pid: int) -> list[int]:
    """A process and all below it."""
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
    """How much of one core a process and all below it use."""
    return sum(it for _, it in _used(pid, seconds))


def busy_still(pid: int, within_s: float = 2.0) -> float:
    """:func:`busy`, once it rests or has had the time to."""
    deadline = time.monotonic() + within_s
    while (share := busy(pid)) > REST and time.monotonic() < deadline:
        continue
    return share


def wait_idle(pid: int, name: str, within_s: float = WITHIN_S) -> None:
    """Wait until a process and all below it rest. Raises :class:`NotIdle`."""
    deadline = time.monotonic() + within_s
    while True:
        used = sorted(_used(pid, LOOK_S), key=lambda it: -it[1])
        share = sum(it for _, it in used)
        if share <= REST:
            return
        if time.monotonic() > deadline:
            raise NotIdle(f"{name} uses {share:.0%} of a core with nothing to do (process {used[0][0]})")


def run_alone(command: Sequence[str], env: Mapping[str, str], cwd: str | Path, within_s: float = 400.0) -> str:
    """What a peer's program prints. It runs in a session of its own: a process of it that is left in the end would take
    CPU from whoever is measured next, and is a :class:`NotIdle`. All of its processes are ended in any case."""
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
    """The processes of a session."""
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
    """How many cores of the machine are in use by whoever it is."""
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
