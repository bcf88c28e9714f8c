"""The operating system's limits for this process, compared with the needs of a deployment."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from omni_actors.entrypoints.server.addresses import ABSENT, Address, bind, resolve
from omni_actors.platforms.cpu.platform import usable_cores, usable_memory
from omni_actors.platforms.platform import Finding, Verdict

KERNEL = (5, 3)
"""Least version of Linux: pidfd_open reports a process' end as an event; sealed memory (5.1) is older."""

LEAST_DESCRIPTORS = 4096
"""Least number of file descriptors. A slab of shared memory takes two in its owner and one in each reader; a client
takes one."""

LEAST_MEMORY = 2 << 30
"""Least memory in bytes. A worker with torch takes some 400 MB before it has a model."""

LEAST_PROCESSES = 512
"""Least number of processes. Threads count: a worker starts some tens of them."""

LEAST_SHM = 256 << 20
"""Least bytes of ``/dev/shm``, which collectives between ranks and vLLM use; payloads between stages do not."""

F_SEAL_FUTURE_WRITE = 0x10


def system_findings(root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return the findings about the system; ``root`` stands for the file system."""
    return (
        Finding("python", Verdict.OK, f"{platform.python_version()} ({sys.executable})"),
        _kernel(),
        Finding("cores", Verdict.OK, f"{usable_cores(root)} cores that this process may use"),
        _memory(root),
        _processes(root),
        _descriptors(),
        _shared_memory(),
        _shm(root),
    )


def port_findings(hosts: Sequence[str], port: int, asked: bool) -> Iterator[Finding]:
    """Yield, for each address of the hosts, whether a server could listen there. An obstacle is a problem if the port
    was ``asked`` for; a host that is no address of this machine is always a problem."""
    subject = f"port {port}"
    taken = Verdict.PROBLEM if asked else Verdict.WARNING
    try:
        found = resolve(hosts, port)
    except OSError as error:
        remedy = "serve --host with an address of this machine"
        yield Finding(subject, Verdict.PROBLEM, f"{error.filename}: {error.strerror or error}", remedy)
        return
    for host in dict.fromkeys(address.host for address in found):
        yield from _findings_of([it for it in found if it.host == host], subject, taken)


def _findings_of(addresses: Sequence[Address], subject: str, taken: Verdict) -> Iterator[Finding]:
    """Yield the findings for the addresses of one host. An address of a family that this machine lacks is no obstacle
    if another address is usable."""
    absent: list[Finding] = []
    usable = False
    for address in addresses:
        where = str(address.name[0]) if address.host == address.name[0] else f"{address.name[0]} ({address.host})"
        try:
            for listener in bind([address]):
                listener.close()
        except OSError as error:
            if error.errno in ABSENT:
                why = f"{where}: no address of this machine"
                absent.append(Finding(subject, Verdict.PROBLEM, why, "serve --host with one of its addresses"))
                continue
            used = error.errno == errno.EADDRINUSE
            why = "another process listens there already" if used else error.strerror or str(error)
            yield Finding(subject, taken, f"{where}: {why}", "serve --port N")
        else:
            yield Finding(subject, Verdict.OK, f"{where}: free")
        usable = True
    if not usable:
        yield from absent


def unix_finding(path: str) -> Finding:
    """Return whether a server could listen at a unix socket. (A leftover of an ended server is removed, as ``serve``
    would.)"""
    from omni_actors.entrypoints.server import listeners  # the server's packages: the rest is said without them

    subject, remedy = f"unix socket {path}", "serve --uds with another path"
    try:
        listeners.close(listeners.listen_unix(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Finding(subject, Verdict.PROBLEM, error.strerror or str(error), remedy)
        return Finding(subject, Verdict.PROBLEM, "another process listens there already, or it is not a socket", remedy)
    return Finding(subject, Verdict.OK, "free")


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return "of unknown size"
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def _kernel() -> Finding:
    release = platform.release()
    if sys.platform != "linux":
        return Finding(
            "kernel", Verdict.PROBLEM, f"{sys.platform}: workers are supervised by means that only Linux has", "Linux"
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        wanted = ".".join(map(str, KERNEL))
        found = f"{release}: the end of a process cannot be waited for ({error.strerror})"
        return Finding("kernel", Verdict.PROBLEM, found, f"Linux {wanted} or later, and pidfd_open allowed (seccomp)")
    return Finding("kernel", Verdict.OK, f"{platform.system()} {release}, {platform.machine()}")


def _memory(root: Path) -> Finding:
    limit = usable_memory(root)
    if limit is not None and limit < LEAST_MEMORY:
        return Finding("memory", Verdict.WARNING, f"{size(limit)}: little for workers", "a higher memory limit")
    return Finding("memory", Verdict.OK, f"{size(limit)} that this process and its workers may use")


def _processes(root: Path) -> Finding:
    """Return the lowest limit of processes, over this user and its cgroups."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found = [] if soft == resource.RLIM_INFINITY else [soft]
    for file in (root / "sys/fs/cgroup/pids.max", root / "sys/fs/cgroup/pids/pids.max"):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        found += [int(text)] if text.isdecimal() else []
    least = min(found, default=None)
    if least is not None and least < LEAST_PROCESSES:
        remedy = f"ulimit -u {LEAST_PROCESSES * 8}, or the container's limit of processes (--pids-limit)"
        return Finding("processes", Verdict.WARNING, f"at most {least}, threads among them", remedy)
    return Finding("processes", Verdict.OK, "unlimited" if least is None else f"at most {least}, threads among them")


def _descriptors() -> Finding:
    """Return the limit of descriptors; a deployment raises the soft limit to the hard one at its start."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_DESCRIPTORS:
        found = f"at most {most}: as many clients and slabs of shared memory"
        return Finding("descriptors", Verdict.WARNING, found, f"ulimit -Hn {LEAST_DESCRIPTORS * 16}, or LimitNOFILE=")
    return Finding("descriptors", Verdict.OK, "unlimited" if most == resource.RLIM_INFINITY else f"at most {most}")


def _shared_memory() -> Finding:
    """Check sealed files without names, in which workers share payloads."""
    try:
        memory = os.memfd_create("doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, 4096)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)
        finally:
            os.close(memory)
    except OSError as error:
        remedy = "Linux 5.1 or later, and memfd_create allowed (seccomp)"
        found = f"memory cannot be shared sealed: {error.strerror}"
        return Finding("shared memory", Verdict.PROBLEM, found, remedy)
    return Finding("shared memory", Verdict.OK, "sealed memory files (memfd), counted as memory of this process")


def _shm(root: Path) -> Finding:
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError as error:
        return Finding(
            "/dev/shm", Verdict.WARNING, f"{error.strerror}: collectives and vLLM want it", "mount a tmpfs there"
        )
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if total < LEAST_SHM:
        remedy = "docker run --shm-size=8g, or --ipc=host"
        return Finding("/dev/shm", Verdict.WARNING, f"{size(total)}: little for collectives and for vLLM", remedy)
    return Finding("/dev/shm", Verdict.OK, f"{size(free)} free of {size(total)}")
