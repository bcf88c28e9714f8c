"""The processors from the kernel's files: instructions, NUMA nodes, and free memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from omni_actors.platforms.cpu.files import groups, lines

_FEATURES = {
    "avx2": {"avx2"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "amx": {"amx_tile", "amx_bf16"},
    "sve": {"sve"},
}
"""Feature → the kernel's flags, all of which the feature needs."""

_BF16 = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}
"""Flags of processors with products of bfloat16 in hardware (``bf16`` is Arm's)."""


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node with usable processors. ``memory`` is in bytes, ``None`` if unknown."""

    number: int
    processors: frozenset[int]
    memory: int | None


def features(root: Path = Path("/")) -> frozenset[str]:
    """Return the features of all processors among ``bf16``, ``avx2``, ``avx512``, ``amx`` (for bfloat16) and
    ``sve``."""
    found: set[str] | None = None
    for line in lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            found = flags if found is None else found & flags
    known = found or set()
    named = {name for name, flags in _FEATURES.items() if flags <= known}
    return frozenset(named | ({"bf16"} if known & _BF16 else set()))


def nodes(root: Path = Path("/")) -> tuple[Node, ...]:
    """Return the NUMA nodes with processors usable by the process, in order."""
    allowed = os.sched_getaffinity(0)
    found = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        processors = frozenset(_numbers(" ".join(lines(folder / "cpulist")))) & allowed
        sizes = [line.split() for line in lines(folder / "meminfo") if "MemTotal:" in line]
        memory = int(sizes[0][-2]) << 10 if sizes and sizes[0][-2].isdecimal() else None
        if processors:
            found.append(Node(int(folder.name.removeprefix("node")), processors, memory))
    return tuple(sorted(found, key=lambda it: it.number))


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes still available to the process: the machine's available memory, cut to the rest below each
    surrounding cgroup's limit. Memory that caches files counts as available, since the kernel gives up cached files."""
    found = [int(line.split()[1]) << 10 for line in lines(root / "proc/meminfo") if line.startswith("MemAvailable:")]
    for group in groups(root):
        limit, used = lines(group / "memory.max"), lines(group / "memory.current")
        if limit and used and limit[0].isdecimal() and used[0].isdecimal():
            held = int(used[0]) - _figure(group / "memory.stat", "inactive_file")
            found.append(max(0, int(limit[0]) - held))
    version1 = root / "sys/fs/cgroup/memory"
    limit, used = lines(version1 / "memory.limit_in_bytes"), lines(version1 / "memory.usage_in_bytes")
    if limit and used:
        held = int(used[0]) - _figure(version1 / "memory.stat", "total_inactive_file")
        found.append(max(0, int(limit[0]) - held))
    return min(found, default=None)


def own_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return the bytes of memory held by the process, and the largest number held so far."""
    said = {name: value.split() for name, _, value in (it.partition(":") for it in lines(root / "proc/self/status"))}
    held, peak = (said.get(name) for name in ("VmRSS", "VmHWM"))
    return int(held[0]) << 10 if held else None, int(peak[0]) << 10 if peak else None


def _figure(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in lines(file) if line.split()[:1] == [name]), 0)


def _numbers(listed: str) -> set[int]:
    """Parse a list in the kernel's form ``0-3,8``."""
    found: set[int] = set()
    for part in listed.replace(",", " ").split():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found |= set(range(int(first), int(last or first) + 1))
    return found
