"""The query of AMD's management library, which opens the devices: run as a subprocess probe
(:mod:`omni_actors.plugins.subprocess_probe`). Standard library only."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def answer(argument: Any) -> dict[str, Any]:
    """Ask amdsmi. Returns ``trouble``, the reason for a missing answer (empty otherwise), and ``devices``: ``model``
    and ``memory`` by PCI address."""
    try:
        smi = import_module("amdsmi")
        smi.amdsmi_init()
        handles = list(smi.amdsmi_get_processor_handles())
        devices = {_address(smi, handle): _facts(smi, handle) for handle in handles}
    except BaseException as error:
        return {"trouble": f"{type(error).__name__}: {error}", "devices": {}}
    return {"trouble": "", "devices": devices}


def _address(smi: Any, handle: Any) -> str:
    return str(smi.amdsmi_get_gpu_device_bdf(handle)).lower()


def _facts(smi: Any, handle: Any) -> dict[str, Any]:
    """Return the facts known to the library's version and the device."""
    facts: dict[str, Any] = {"model": None, "memory": None}
    try:
        facts["model"] = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"]) or None
    except Exception:
        pass
    try:
        facts["memory"] = int(smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM))
    except Exception:
        pass
    return facts
