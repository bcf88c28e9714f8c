"""amdsmi: two devices, of which the second is the one that torch sees."""

from __future__ import annotations

from enum import IntEnum

from tests.platforms.fake_vendors.host_device import record


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


def amdsmi_init() -> None:
    record("amdsmi_init")


def amdsmi_shut_down() -> None:
    record("amdsmi_shut_down")


def amdsmi_get_processor_handles() -> list[str]:
    return ["first", "second"]


def amdsmi_get_gpu_device_bdf(handle: str) -> str:
    return {"first": "0000:03:00.0", "second": "0000:43:00.0"}[handle]


def amdsmi_get_gpu_memory_total(handle: str, kind: AmdSmiMemoryType) -> int:
    return {"first": 1, "second": 192 << 30}[handle]


def amdsmi_get_gpu_memory_usage(handle: str, kind: AmdSmiMemoryType) -> int:
    return {"first": 1, "second": 50 << 30}[handle]
