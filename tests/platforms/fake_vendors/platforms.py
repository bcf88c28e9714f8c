"""The builtin platforms with a machine that has their device, whose workers find the fake packages.

Everything else is the builtin's: what it chooses, its runtime, its engines. Only what torch itself calls a device of
its own (``xpu``, and ``cuda`` for ROCm) cannot be had by a torch built for processors: there the fake device has
another name, and what stands in for ``torch.xpu`` and ``torch.cuda`` is there while the runtime opens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from tests.platforms.fake_vendors import HERE

from omni_actors.platforms.accelerator import Accelerator, Inventory, Unit
from omni_actors.platforms.ascend import AscendPlatform
from omni_actors.platforms.musa import MusaPlatform
from omni_actors.platforms.rocm import RocmPlatform, runtime
from omni_actors.platforms.rocm.runtime import RocmRuntime
from omni_actors.platforms.xpu import XpuPlatform
from omni_actors.platforms.xpu.runtime import MAX_SERIES, XpuRuntime

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

SIM = "sim"
"""What the fake device is called where torch has the vendor's name for itself."""


class _Fake(Accelerator):
    contract = 1
    packages: ClassVar[str]
    """The folder of its packages, which are not installed: only workers find them."""
    distributions: ClassVar[Mapping[str, str]] = {}

    def survey(self) -> Inventory:
        return Inventory((Unit("a fake device", 8 << 30),) * 2, complete=True)

    def software(self) -> str:
        return ""

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(HERE / self.packages), os.environ.get("PYTHONPATH"))))
        return {**super().worker_environment(device, threads, options), "PYTHONPATH": path}


class FakeAscend(_Fake, AscendPlatform):
    packages = "ascend"


class FakeMusa(_Fake, MusaPlatform):
    packages = "musa"


class FakeXpu(_Fake, XpuPlatform):
    packages = "xpu"
    device_type = SIM
    runtime = f"{__name__}:HostXpuRuntime"


class FakeRocm(_Fake, RocmPlatform):
    packages = "rocm"
    device_type = SIM
    runtime = f"{__name__}:HostRocmRuntime"


BUILTINS = {platform.name: f"{__name__}:{platform.__name__}" for platform in (FakeAscend, FakeMusa, FakeXpu, FakeRocm)}


class HostXpuRuntime(XpuRuntime):
    device_type = SIM

    def bring(self) -> Any:
        import torch
        from tests.platforms.fake_vendors.host_device import HostModule, install

        class Xpu(HostModule):
            def get_device_capability(self, device: Any = None) -> dict[str, Any]:
                return {"architecture": int(os.environ.get("FAKE_VENDOR_ARCHITECTURE", 0))}

            def get_device_properties(self, device: Any = None) -> SimpleNamespace:
                return SimpleNamespace(name="a fake Intel GPU", has_fp64=False, total_memory=self.total)

            def is_bf16_supported(self) -> bool:
                return True

        module = Xpu("xpu")
        install(SIM, module)
        with patch.object(torch, "xpu", module):
            return super().bring()


class HostRocmRuntime(RocmRuntime):
    device_type = SIM

    def bring(self) -> Any:
        import torch
        from tests.platforms.fake_vendors.host_device import HostModule, install

        class Hip(HostModule):
            def get_device_properties(self, device: Any = None) -> SimpleNamespace:
                return SimpleNamespace(
                    gcnArchName=os.environ.get("FAKE_VENDOR_ARCHITECTURE", "gfx942:sramecc+:xnack-"),
                    pci_domain_id=0,
                    pci_bus_id=0x43,
                    pci_device_id=0,
                )

            def get_device_capability(self, device: Any = None) -> tuple[int, int]:
                return 9, 4

        module = Hip("cuda")
        install(SIM, module)
        with patch.object(torch, "cuda", module), patch.object(torch.version, "hip", "7.0"):
            return super().bring()

    def choose(self) -> Kernels:
        from tests.platforms.fake_vendors.triton_launcher import imported

        imported("omni_actors.platforms.runtime.triton_attention")
        with patch.object(runtime, "has", lambda name: name == "triton"):
            return super().choose()


__all__ = ["BUILTINS", "MAX_SERIES", "FakeAscend", "FakeMusa", "FakeRocm", "FakeXpu"]
