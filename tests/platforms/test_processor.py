"""What the kernel's files tell of processors, and what becomes of it: workers on NUMA nodes, dtypes, memory figures."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu import runtime as cpu_runtime
from omni_actors.platforms.cpu.platform import NODE
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.cpu.topology import Node, features, free_memory, nodes, own_memory
from omni_actors.platforms.platform import PlatformError

SAPPHIRE = "avx2 avx512f avx512bw avx512vl avx512dq avx512_bf16 amx_tile amx_bf16 amx_int8"


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def node(root: Path, number: int, processors: str, kib: int = 1 << 20) -> None:
    folder = f"sys/devices/system/node/node{number}"
    write(
        root,
        **{f"{folder}/cpulist": f"{processors}\n", f"{folder}/meminfo": f"Node {number} MemTotal:    {kib} kB\n"},
    )


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processors 0 to 3, two on each node."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(CpuPlatform, "root", tmp_path)
    node(tmp_path, 0, "0-1")
    node(tmp_path, 1, "2,3", 2 << 20)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"flags\t\t: {SAPPHIRE}", {"avx2", "avx512", "amx", "bf16"}),
        ("flags\t\t: avx2 avx512f", {"avx2"}),
        ("flags : avx2 avx512f avx512bw avx512vl avx512dq", {"avx2", "avx512"}),
        ("Features\t: fp asimd sve bf16 i8mm", {"sve", "bf16"}),
        ("Features\t: fp asimd", set()),
        ("model name : something", set()),
    ],
)
def test_features_are_read_from_the_flags(tmp_path: Path, line: str, found: set[str]) -> None:
    assert features(write(tmp_path, proc__cpuinfo=f"processor : 0\n{line}\n")) == found


def test_a_feature_is_what_every_processor_has(tmp_path: Path) -> None:
    """As with processors of two kinds on one chip: a thread may run on either."""
    assert features(write(tmp_path, proc__cpuinfo=f"flags : {SAPPHIRE}\n\nflags : avx2\n")) == {"avx2"}
    assert features(tmp_path / "nowhere") == frozenset()


def test_nodes_are_those_with_processors_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 8, 9})
    node(tmp_path, 0, "0-3,8")
    node(tmp_path, 1, "4-7")
    node(tmp_path, 10, "9-11")
    node(tmp_path, 2, "")  # memory without processors
    found = nodes(tmp_path)
    assert [(it.number, set(it.processors)) for it in found] == [(0, {2, 3, 8}), (10, {9})]
    assert found[0].memory == 1 << 30


def test_this_machines_files_are_read() -> None:
    assert all(it.processors <= os.sched_getaffinity(0) for it in nodes())
    free, (held, peak) = free_memory(), own_memory()
    assert free is not None
    assert held is not None
    assert peak is not None
    assert 0 < held <= peak
    memory = CpuRuntime("cpu", {}).memory()
    assert memory.total is not None
    assert 0 < free < memory.total * 1.01


def test_free_memory_is_what_the_groups_leave(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    assert free_memory(tmp_path) == 4 << 20
    group = "sys/fs/cgroup/a/memory"
    write(
        tmp_path, **{"proc/self/cgroup": "0::/a\n", f"{group}.max": f"{3 << 20}\n", f"{group}.current": f"{2 << 20}\n"}
    )
    assert free_memory(tmp_path) == 1 << 20
    write(tmp_path, **{f"{group}.stat": f"anon 5\ninactive_file {1 << 20}\n"})
    assert free_memory(tmp_path) == 2 << 20, "the kernel gives files' memory up"
    write(tmp_path, **{f"{group}.max": "max\n"})
    assert free_memory(tmp_path) == 4 << 20
    assert free_memory(tmp_path / "nowhere") is None


def test_free_memory_in_an_older_group(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/memory"
    write(tmp_path, **{f"{group}.limit_in_bytes": "1000\n", f"{group}.usage_in_bytes": "1500\n"})
    assert free_memory(tmp_path) == 0
    write(tmp_path, **{f"{group}.stat": "total_inactive_file 700\n"})
    assert free_memory(tmp_path) == 200


def test_nodes_are_devices_where_there_are_several(two_nodes: Path) -> None:
    whole, first, second = CpuPlatform().devices()
    assert (whole.name, first.name, second.name) == ("cpu", "cpu:0", "cpu:1")
    assert second.memory == 2 << 30
    assert CpuPlatform().worker_device("cpu:1") == "cpu"
    assert CpuPlatform().worker_environment("cpu:1", 2, {})[NODE] == "1"
    assert NODE not in CpuPlatform().worker_environment("cpu", 2, {})


def test_workers_are_spread_over_the_nodes(two_nodes: Path) -> None:
    plan = resolve("stub", platform="cpu", overrides=["stages.a.threads=2", "stages.b.threads=1"])
    a, b = plan.stage("a"), plan.stage("b")
    assert {a.devices[0], b.devices[0]} == {"cpu:0", "cpu:1"}
    assert set(a.devices) == {"cpu:0", "cpu:1"}, "replicas take turns"
    assert [it[NODE] for it in a.environments] == [it.partition(":")[2] for it in a.devices]
    assert a.worker_device_of(0) == a.worker_device_of(1) == "cpu"


def test_a_worker_of_more_threads_than_a_node_has_is_kept_to_none(two_nodes: Path) -> None:
    plan = resolve("stub", platform="cpu", overrides=["stages.a.threads=3"])
    assert plan.stage("a").devices == ("cpu",)
    assert NODE not in plan.stage("a").environments[0]


def test_an_operator_may_choose_the_node_or_none(two_nodes: Path) -> None:
    plan = resolve("stub", platform="cpu", overrides=["stages.a.device=cpu:1", "platforms.cpu.numa=false"])
    assert plan.stage("a").devices == ("cpu:1",)
    assert plan.stage("b").devices == ("cpu",)


def test_one_node_is_no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "root", tmp_path)
    node(tmp_path, 0, "0-1023")
    assert [it.name for it in CpuPlatform().devices()] == ["cpu"]
    assert CpuPlatform().usual_devices(0, 1, {"numa": True}) == ("cpu",)


def open_here(monkeypatch: pytest.MonkeyPatch, number: str, *known: Node) -> frozenset[int] | Exception:
    """What a thread may run on that opens the runtime: a thread's own affinity is no other's."""
    monkeypatch.setenv(NODE, number)
    monkeypatch.setattr(cpu_runtime, "nodes", lambda: known)
    became: list[frozenset[int] | Exception] = []

    def work() -> None:
        try:
            CpuRuntime("cpu", {}).open()
            became.append(frozenset(os.sched_getaffinity(0)))
        except Exception as error:
            became.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    return became[0]


def test_an_open_worker_keeps_to_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    one = frozenset([min(os.sched_getaffinity(0))])
    before = os.sched_getaffinity(0)
    assert open_here(monkeypatch, "1", Node(0, frozenset(before), None), Node(1, one, None)) == one
    assert os.sched_getaffinity(0) == before


def test_a_node_without_processors_of_ours_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_here(monkeypatch, "7"), PlatformError)


@pytest.mark.parametrize(
    ("flags", "option", "dtype"),
    [
        (SAPPHIRE, "float32", "float32"),
        (SAPPHIRE, "auto", "bfloat16"),
        ("avx2", "auto", "float32"),
        ("avx2", "bfloat16", "bfloat16"),
    ],
)
def test_the_usual_dtype_is_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, option: str, dtype: str
) -> None:
    monkeypatch.setattr(CpuPlatform, "root", write(tmp_path, proc__cpuinfo=f"flags : {flags}\n"))
    plan = resolve("stub", platform="cpu", overrides=[f"platforms.cpu.dtype={option}"])
    assert plan.stage("a").dtype == dtype


def test_a_dtype_that_there_is_not_is_said_where_it_stands() -> None:
    with pytest.raises(PlanError, match=r"takes float32 or bfloat16 or auto, not 'int3'"):
        resolve("stub", platform="cpu", overrides=["platforms.cpu.dtype=int3"])
