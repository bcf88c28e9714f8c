"""Any machine with a processor: the platform that is always there."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from omni_actors.platforms.platform import VLLM_ENGINE, Detection, Device, OmniPlatform

KEPT_BYTES = 1 << 30
"""Freed memory up to this size stays with the process (glibc)."""


class CpuPlatform(OmniPlatform):
    contract = 1
    name = "cpu"
    shared = True
    runtime = "omni_actors.platforms.cpu.runtime:CpuRuntime"
    engines: ClassVar[Mapping[str, str]] = {**OmniPlatform.engines, "vllm": VLLM_ENGINE}
    vllm_builds = ("cpu",)

    def detect(self) -> Detection:
        return Detection(True, True, f"{self.cores()} cores, {platform.machine()}")

    def devices(self) -> tuple[Device, ...]:
        return (Device("cpu", usable_memory(), f"{self.cores()} cores, {platform.machine()}"),)

    def cores(self) -> int:
        return usable_cores()

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Thread counts for every library that reads one at import; a library that ignores them would start as many
        threads as the machine has cores in each worker, and their spinning costs several times what they bring.

        And the C library keeps what is freed: by default each tensor of more than a few hundred kilobytes is mapped
        anew, page by page, and given back after its operation. Measured on a vocoder's batch of 16: three times slower.
        """
        count = str(threads)
        return {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "OPENBLAS_NUM_THREADS": count,
            "NUMEXPR_NUM_THREADS": count,
            "VECLIB_MAXIMUM_THREADS": count,
            "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
            "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
        }


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: its affinity mask, cut to the cgroup's CPU quota. At least 1.

    A quota of one and a half cores counts as one: a second busy thread would only be throttled.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(int(quota) for quota in _cpu_quotas(root))]))


def usable_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process may ever use: the machine's, cut to the cgroup's limit."""
    found = [int(line.split()[1]) << 10 for line in _lines(root / "proc/meminfo") if line.startswith("MemTotal:")]
    for group in _groups(root):
        found += [int(line) for line in _lines(group / "memory.max") if line.isdecimal()]
    found += [int(line) for line in _lines(root / "sys/fs/cgroup/memory/memory.limit_in_bytes") if line.isdecimal()]
    return min(found, default=None)


def _groups(root: Path) -> list[Path]:
    """The folders of this process's version-2 cgroup and of all above it, as far as this namespace shows them."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            group = mount / line[len("0::/") :]
            return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return [mount]


def _cpu_quotas(root: Path) -> list[float]:
    """CPU quotas in cores, of both cgroup versions; nothing where there is no limit."""
    pairs = [line.split() for group in _groups(root) for line in _lines(group / "cpu.max")]
    version1 = root / "sys/fs/cgroup/cpu"
    pairs += [
        [quota, period]
        for quota in _lines(version1 / "cpu.cfs_quota_us")
        for period in _lines(version1 / "cpu.cfs_period_us")
    ]
    return [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1]) > 0
    ]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
