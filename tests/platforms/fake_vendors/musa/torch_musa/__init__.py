"""torch_musa, as far as the runtime uses it."""

from __future__ import annotations

from typing import Any

from tests.platforms.fake_vendors.host_device import HostModule, install, install_collectives


class _Musa(HostModule):
    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return 3, 1

    def is_bf16_supported(self) -> bool:
        return True


install("musa", _Musa("musa"))
install_collectives("mccl", "musa")
