"""Facts from NVIDIA's management library, or another library with the same interface (Moore Threads' ``pymtml``).

The module runs in a process of its own (see :mod:`omni_actors.plugins.subprocess_probe`), since it opens the devices.
Standard library only.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

MOST_DEVICES = 1024


def answer(argument: dict[str, str]) -> dict[str, Any]:
    """Ask the management library; ``argument`` names a ``module`` and the driver's ``library``.

    Returns ``driver``, the reason why the driver's library cannot be loaded (empty otherwise); ``trouble``, the reason
    for a missing answer of the management library, and ``code``, its number; and ``devices``, each with ``id``,
    ``model``, ``memory``, ``trouble`` and, for a sliced device, ``parts`` of the same kind.
    """
    said: dict[str, Any] = {"driver": _loaded(argument["library"]), "trouble": "", "code": None, "devices": []}
    try:
        nvml = import_module(argument["module"])
        nvml.nvmlInit()
    except BaseException as error:
        said["trouble"] = f"{type(error).__name__}: {error}"
        said["code"] = getattr(error, "value", None) if isinstance(getattr(error, "value", None), int) else None
        return said
    try:
        count = nvml.nvmlDeviceGetCount()
        if not isinstance(count, int) or not 0 <= count <= MOST_DEVICES:
            said["trouble"] = f"it counts {count!r} devices"
            return said
        said["devices"] = [_device(nvml, index) for index in range(count)]
    except Exception as error:
        said["trouble"] = f"{type(error).__name__}: {error}"
    return said


def _loaded(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


def _device(nvml: Any, index: int) -> dict[str, Any]:
    """Describe a device. A device without an answer is listed too, so that the ordinals of others stay right."""
    device: dict[str, Any] = {"id": None, "model": None, "memory": None, "trouble": "", "parts": []}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        device |= _facts(nvml, handle)
        if (slices := _slices(nvml, handle)) is not None:
            device["parts"] = slices
            device["trouble"] = "" if slices else "MIG is on, and the device has no slice: create one, or turn MIG off"
    except Exception as error:
        device["trouble"] = f"{type(error).__name__}: {error}"
    return device


def _facts(nvml: Any, handle: Any) -> dict[str, Any]:
    facts = {"id": _text(nvml.nvmlDeviceGetUUID(handle)), "model": _text(nvml.nvmlDeviceGetName(handle))}
    try:
        return {**facts, "memory": int(nvml.nvmlDeviceGetMemoryInfo(handle).total)}
    except Exception as error:
        if "NotSupported" in type(error).__name__ or getattr(error, "value", None) == 3:
            return facts  # no memory of its own, as for devices on the processor's chip
        return {**facts, "trouble": f"{type(error).__name__}: {error}"}


def _slices(nvml: Any, handle: Any) -> list[dict[str, Any]] | None:
    """Return the MIG slices of a device; ``None`` for a whole device or one without MIG."""
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
        if not mode:
            return None
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except Exception:
        return None
    found = []
    for index in range(min(int(most), MOST_DEVICES)):
        try:
            found.append(_facts(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
        except Exception:  # an empty place
            continue
    return found


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
