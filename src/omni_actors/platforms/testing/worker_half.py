"""The checks of a platform's half in a worker, on the platform's device.

:mod:`omni_actors.platforms.testing.kit` runs this file as a subprocess probe
(:func:`omni_actors.plugins.subprocess_probe.run_probes`). As a program (``worker_half.py open``) the file is the other
process of a hand-over.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omni_actors.platforms.platform import Fault
from omni_actors.platforms.runtime import Capability, DeviceRuntime, DeviceTransport, Graphs, Memory, TransportError
from omni_actors.platforms.testing import workload
from omni_actors.platforms.testing.checking import Skip, expect, run
from omni_actors.telemetry.opt_out import quiet_environment

TOO_MUCH = 1 << 50
"""Bytes: more than any device has or a process can address."""

HAND_OVER_S = 120.0


def answer(argument: dict[str, Any]) -> dict[str, Any]:
    """Examine a runtime.

    Args:
        argument: The argument of :func:`~omni_actors.platforms.testing.workload.hello_of`, with ``dtypes`` and
            ``transports``.

    Returns:
        ``results``, and ``said``, the tokens of a tiny model, or ``trouble`` without tokens.
    """
    half = WorkerHalf(argument)
    found = run({"opens": half.opens})
    if found["opens"][0] != "passed":
        return {"results": found, "said": None, "trouble": "its device does not open"}
    from omni_actors.platforms.testing.kernel_checks import KernelChecks

    found |= run({**half.checks(), **KernelChecks(half.runtime, argument["dtypes"]).checks()})
    said = None

    def tokens() -> None:
        nonlocal said
        said = workload.say(argument)

    (trouble,) = run({"tokens": tokens}).values()
    return {"results": found, "said": said, "trouble": trouble[1]}


def open_runtime(argument: Mapping[str, Any]) -> DeviceRuntime:
    platform = resolve_name(argument["platform"])
    runtime: DeviceRuntime = resolve_name(platform.runtime)(argument["device"], argument["options"])
    runtime.open()
    return runtime


class WorkerHalf:
    """The checks of a runtime, which :meth:`opens` makes; one method each."""

    runtime: DeviceRuntime

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self.argument = argument
        self.platform = resolve_name(argument["platform"])

    def opens(self) -> None:
        kind = resolve_name(self.platform.runtime)
        expect(
            isinstance(kind, type) and issubclass(kind, DeviceRuntime), f"{self.platform.runtime} is no DeviceRuntime"
        )
        kind(self.argument["device"], self.argument["options"])
        expect(
            "torch" not in sys.modules,
            f"importing {self.platform.runtime.partition(':')[0]}, or making it, imports torch: that is for open",
        )
        for patch in kind.patches:
            expect(patch.name and patch.why, "a patch has no name, or says not why it is")
        # By name, since platforms must not import the worker's packages. The engine finds the same runtime.
        self.runtime = resolve_name("omni_actors.worker.device:runtime_of")(workload.hello_of(self.argument))

    def checks(self) -> dict[str, Callable[[], None]]:
        names = (
            "torch_device", "capability", "memory", "synchronize", "faults", "free_memory", "graphs", "transport",
            "hand_over", "profiler", "engines",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def torch_device(self) -> None:
        import torch

        device = self.runtime.torch_device
        expect(isinstance(device, torch.device), f"torch_device is {device!r}")
        for name in self.argument["dtypes"]:
            there = torch.arange(6, dtype=torch.float32).to(getattr(torch, name)).to(device)
            expect(there.device.type == device.type, f"a tensor that is moved to {device} lies on {there.device}")
            expect(
                there.float().cpu().tolist() == [0, 1, 2, 3, 4, 5],
                f"{name} does not come back from {device} as it went",
            )

    def capability(self) -> None:
        found = self.runtime.capability()
        expect(isinstance(found, Capability) and found.name, f"capability() is {found!r}")
        expect(isinstance(found.features, frozenset), "its features are no frozenset")

    def memory(self) -> None:
        self._memory()
        held = self._product(1024)
        found = self._memory()
        size = held.numel() * held.element_size()
        if found.used is not None:
            expect(found.used >= size, f"memory().used is {found.used} while a tensor of {size} bytes is held")
            expect(found.peak is None or found.peak >= found.used, "the peak is less than what is used")

    def synchronize(self) -> None:
        self._product(64)
        self.runtime.synchronize()

    def faults(self) -> None:
        outer = type("OutOfMemoryError", (RuntimeError,), {})
        cases = ((MemoryError(), Fault.MEMORY), (outer("no"), Fault.MEMORY), (ValueError("shape"), Fault.OTHER),
                 (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Fault.OTHER))  # fmt: skip
        for error, wanted in cases:
            found = self.runtime.fault(error)
            expect(found is wanted, f"{type(error).__name__}('{error}') is called {found}, not {wanted}")
        import torch

        try:
            torch.empty(TOO_MUCH, dtype=torch.uint8, device=self.runtime.torch_device)
        except Exception as error:
            found = self.runtime.fault(error)
            expect(found is Fault.MEMORY, f"more memory than there can be is called {found}: {error}")
        else:
            raise AssertionError(f"{TOO_MUCH >> 40} TiB can be had")
        self.runtime.free_memory()
        expect(self._sum(self._product(16)) == 16.0**3, "after a lack of memory the device computes something else")

    def free_memory(self) -> None:
        kept = self._product(32)
        self._product(512)
        self.runtime.free_memory()
        expect(self._sum(kept) == 32.0**3, "free_memory() gives back what is in use")

    def graphs(self) -> None:
        import torch

        graphs = self.runtime.graphs()
        if graphs is None:
            raise Skip("steps run as they are written")
        expect(isinstance(graphs, Graphs), f"graphs() is a {type(graphs).__name__}")
        sizes = graphs.sizes
        ascending = list(sizes) == sorted(set(sizes)) and all(type(size) is int and size > 0 for size in sizes)
        expect(sizes and ascending, f"its sizes {sizes} do not ascend")
        device = self.runtime.torch_device
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            given = torch.zeros(size, 32, device=device)
            weight = torch.randn(32, 32, generator=torch.Generator().manual_seed(size)).to(device)
            replay = graphs.capture(lambda given=given, weight=weight: (given @ weight).relu())  # type: ignore[misc]
            for value in (1.0, -2.0):
                given.fill_(value)
                found = replay().cpu()
                wanted = (given @ weight).relu().cpu()
                error = float((found - wanted).abs().max())
                expect(
                    error <= 1e-4 * max(1.0, float(wanted.abs().max())), f"a step of {size} rows replays another result"
                )

    def transport(self) -> None:
        found = self._transport()
        expect(isinstance(found, DeviceTransport), f"transport() is a {type(found).__name__}")
        kinds = self.argument["transports"]
        expect(found.kind in kinds, f"transport() is of kind '{found.kind}', which its transports {kinds} have not")
        try:
            found.open(b"no handle of anybody")
        except TransportError:
            pass
        else:
            raise AssertionError("a handle that is nobody's can be opened")
        found.release(b"no handle of anybody")

    def hand_over(self) -> None:
        import torch

        transport = self._transport()
        sent = torch.randn(3, 1000, generator=torch.Generator().manual_seed(3)).to(self.runtime.torch_device)
        handle = transport.export(sent)
        told = {"argument": dict(self.argument), "handle": base64.b64encode(handle).decode(), "path": sys.path}
        done = subprocess.run(
            [sys.executable, "-P", __file__, "open"],
            env=quiet_environment(),
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=HAND_OVER_S,
            check=False,
        )
        expect(done.returncode == 0, f"another process cannot open it: {done.stderr.strip().splitlines()[-1:]}")
        expect(json.loads(done.stdout.splitlines()[-1]) == sent.cpu().tolist(), "another process reads something else")
        transport.release(handle)

    def profiler(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with self.runtime.profiler(Path(folder)):
                found = self._sum(self._product(16))
            expect(found == 16.0**3, "under the profiler the device computes something else")

    def engines(self) -> None:
        from omni_actors.platforms.platform import VLLM_ENGINE

        base = resolve_name("omni_actors.worker.engine:Engine")
        for kind, name in self.platform.engines.items():
            if name == VLLM_ENGINE and find_spec("vllm") is None:
                continue
            engine = resolve_name(name)
            expect(
                isinstance(engine, type) and issubclass(engine, base),
                f"its engine of kind '{kind}' {name} is no Engine",
            )
            missing = sorted(engine.__abstractmethods__)
            expect(not missing, f"its engine of kind '{kind}' {name} has no {', '.join(missing)}")

    def _memory(self) -> Memory:
        found = self.runtime.memory()
        expect(isinstance(found, Memory), f"memory() is a {type(found).__name__}")
        for name in ("total", "free", "used", "peak"):
            value = getattr(found, name)
            expect(value is None or (type(value) is int and value >= 0), f"memory().{name} is {value!r}")
        if found.total is not None and found.free is not None:
            expect(found.free <= found.total, "memory() says that more is free than there is")
        return found

    def _transport(self) -> DeviceTransport:
        found = self.runtime.transport()
        if found is None:
            raise Skip("tensors go through the host")
        return found

    def _product(self, side: int) -> Any:
        import torch

        ones = torch.ones(side, side, dtype=torch.float32, device=self.runtime.torch_device)
        return ones @ ones

    def _sum(self, tensor: Any) -> float:
        return float(tensor.double().cpu().sum()) if tensor.device.type == "cpu" else float(tensor.cpu().double().sum())


def _opened_elsewhere() -> None:
    """Return what another process reads from a handle, which that process opens and closes."""
    told = json.load(sys.stdin)
    sys.path[:] = told["path"]
    transport = open_runtime(told["argument"]).transport()
    assert transport is not None
    handle = base64.b64decode(told["handle"])
    values = transport.open(handle).cpu().tolist()
    transport.close(handle)
    print(json.dumps(values))


if __name__ == "__main__":
    _opened_elsewhere()
