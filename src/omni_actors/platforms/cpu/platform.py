"""The platform of any machine with a processor, always available."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from omni_actors.platforms.cpu.files import groups, lines
from omni_actors.platforms.cpu.topology import Node, features, nodes
from omni_actors.platforms.platform import VLLM_ENGINE, Detection, Device, OmniPlatform
from omni_actors.platforms.quantization import TORCH
from omni_actors.protocol.options import Option

KEPT_BYTES = 1 << 30
"""Bytes. Freed memory up to this size stays with the process (glibc)."""

NODE = "OMNI_ACTORS_NUMA_NODE"
"""Environment variable of a worker with the number of its NUMA node."""

DTYPES = ("float32", "bfloat16", "auto")
"""The values of option ``dtype``."""


class CpuPlatform(OmniPlatform):
    contract = 1
    name = "cpu"
    shared = True
    own_memory = False
    runtime = "omni_actors.platforms.cpu.runtime:CpuRuntime"
    engines: ClassVar[Mapping[str, str]] = {**OmniPlatform.engines, "vllm": VLLM_ENGINE}
    vllm_builds = ("cpu",)
    quantization: ClassVar[Mapping[str, str]] = TORCH
    options: ClassVar[Mapping[str, Option]] = {
        "dtype": Option(
            "float32",
            "Data type of stages that name none: float32, bfloat16, or auto, which is bfloat16 where the "
            "processor has instructions for it.",
            choices=DTYPES,
        ),
        "numa": Option(
            True, "Keep each worker on one NUMA node, if there are several and the worker's threads fit on one."
        ),
    }
    root: ClassVar[Path] = Path("/")

    def detect(self) -> Detection:
        return Detection(True, True, self._description())

    def devices(self) -> tuple[Device, ...]:
        """Return the devices: ``cpu`` is the whole machine; with several NUMA nodes, ``cpu:0``, ``cpu:1`` … are the
        nodes."""
        whole = Device("cpu", usable_memory(self.root), self._description())
        several = nodes(self.root)
        return (whole, *(self._node(it) for it in several)) if len(several) > 1 else (whole,)

    def cores(self) -> int:
        return usable_cores(self.root)

    def usual_dtype(self, options: Mapping[str, Any]) -> str:
        wanted = options.get("dtype", self.default_dtype)
        if wanted == "auto":
            return "bfloat16" if "bf16" in features(self.root) else "float32"
        return str(wanted)

    def usual_devices(self, stage: int, threads: int, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the NUMA nodes in turn, beginning at another node for each stage, so that stages and replicas are
        spread."""
        several = nodes(self.root)
        narrow = any(threads > len(it.processors) for it in several)
        if not options.get("numa", True) or len(several) < 2 or narrow:
            return super().usual_devices(stage, threads, options)
        first = stage % len(several)
        return tuple(f"cpu:{it.number}" for it in several[first:] + several[:first])

    def worker_device(self, device: str) -> str:
        """Return ``cpu``: a node holds the worker's threads and memory, and torch has no devices for nodes."""
        return "cpu"

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        """Return thread counts for every library that reads a count at import. Without a count each worker would start
        as many threads as the machine has cores, and the spinning of threads costs several times their benefit.

        The C library is told to keep freed memory: by default each tensor of more than a few hundred kilobytes is
        mapped again, page by page, and returned after its operation. Measured on a vocoder's batch of 16: three times
        slower.
        """
        count = str(threads)
        kind, _, number = device.partition(":")
        return {
            **({NODE: number} if kind == "cpu" and number else {}),
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "OPENBLAS_NUM_THREADS": count,
            "NUMEXPR_NUM_THREADS": count,
            "VECLIB_MAXIMUM_THREADS": count,
            "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
            "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
        }

    def _description(self) -> str:
        known = sorted(features(self.root) - {"avx2"})
        return ", ".join([f"{self.cores()} cores", platform.machine(), *known])

    def _node(self, node: Node) -> Device:
        return Device(f"cpu:{node.number}", node.memory, f"NUMA node {node.number}, {len(node.processors)} processors")


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores for the process: the affinity mask, cut to the cgroup's CPU quota. At least 1.

    A quota of one and a half cores counts as one: a second busy thread would only be throttled.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(int(quota) for quota in _cpu_quotas(root))]))


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the most bytes of memory for the process: the machine's memory, cut to the cgroup's limit."""
    found = [int(line.split()[1]) << 10 for line in lines(root / "proc/meminfo") if line.startswith("MemTotal:")]
    for group in groups(root):
        found += [int(line) for line in lines(group / "memory.max") if line.isdecimal()]
    found += [int(line) for line in lines(root / "sys/fs/cgroup/memory/memory.limit_in_bytes") if line.isdecimal()]
    return min(found, default=None)


def _cpu_quotas(root: Path) -> list[float]:
    """Return the CPU quotas in cores, of both cgroup versions; an empty list without a limit."""
    pairs = [line.split() for group in groups(root) for line in lines(group / "cpu.max")]
    version1 = root / "sys/fs/cgroup/cpu"
    pairs += [
        [quota, period]
        for quota in lines(version1 / "cpu.cfs_quota_us")
        for period in lines(version1 / "cpu.cfs_period_us")
    ]
    return [
        int(pair[0]) / int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isdecimal() and pair[1].isdecimal() and int(pair[1]) > 0
    ]
