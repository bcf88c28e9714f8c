"""What a platform's plugin is and finds, asked in a process of its own: see :mod:`omni_actors.platforms.probe`."""

from __future__ import annotations

import os
import sys
from pkgutil import resolve_name
from typing import Any

from omni_actors.platforms.answering import said

HEAVY = (
    "torch",
    "torch_npu",
    "torch_musa",
    "torchada",
    "intel_extension_for_pytorch",
    "tensorflow",
    "jax",
    "cupy",
    "numba",
    "transformers",
    "diffusers",
    "vllm",
    "onnxruntime",
    "pynvml",
    "amdsmi",
    "pymtml",
    "acl",
    "dpctl",
)
"""Modules that open devices or take seconds: a platform's class imports none of them."""

HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/shm")


def answer(argument: dict[str, str]) -> dict[str, Any]:
    """``{"broken": sentence}``, or what the platform detects: ``usable``, ``present`` and ``reason``."""
    name, value = argument["name"], argument["value"]
    try:
        found = _look(name, value)
    except _Broken as broken:
        return {"broken": str(broken)}
    return found if (sin := _touched(value, found.pop("packages"))) is None else {"broken": sin}


class _Broken(Exception):
    pass


def _look(name: str, value: str) -> dict[str, Any]:
    from omni_actors.platforms.platform import CONTRACT, Detection, OmniPlatform

    kind = _try("cannot be imported", resolve_name, value)
    if not (isinstance(kind, type) and issubclass(kind, OmniPlatform)):
        raise _Broken(f"{value} is no subclass of OmniPlatform")
    # What a builtin states is this version, whichever a plugin that derives from it was written for.
    own = (vars(it) for it in kind.__mro__ if it.__module__.partition(".")[0] != "omni_actors")
    stated = next((it["contract"] for it in own if "contract" in it), None)
    if stated is None:
        raise _Broken(f"it does not say which platform contract it was written for: this is version {CONTRACT}")
    if stated != CONTRACT:
        raise _Broken(f"it was written for version {stated!r} of the platform contract, and this is version {CONTRACT}")
    if getattr(kind, "name", None) != name:
        raise _Broken(f"its entry point is called '{name}', and the platform itself {getattr(kind, 'name', None)!r}")
    platform = _try("cannot be made", kind)
    detection = _try("cannot detect its device", platform.detect)
    if not isinstance(detection, Detection):
        raise _Broken(f"its detect() returns {type(detection).__name__}, not a Detection")
    if detection.usable:
        _check_devices(_try("cannot list its devices", platform.devices))
        _check_environment(platform)
    return {
        "usable": bool(detection.usable),
        "present": bool(detection.present or detection.usable),
        "reason": str(detection.reason),
        "packages": [str(package) for package in kind.distributions],
    }


def _try(what: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except BaseException as error:
        raise _Broken(f"it {what}: {said(error)}") from error


def _check_devices(devices: Any) -> None:
    from omni_actors.platforms.platform import Device

    if not isinstance(devices, tuple) or not all(isinstance(device, Device) for device in devices):
        raise _Broken("its devices() are no tuple of Device")
    if not devices:
        raise _Broken("it says that it can be used and has no device")


def _check_environment(platform: Any) -> None:
    """What is asked of it when a stage is placed."""
    cores = _try("cannot count its cores", platform.cores)
    if not isinstance(cores, int) or cores < 1:
        raise _Broken(f"it counts {cores!r} cores")
    device = platform.devices()[0].name
    _try(f"does not know its own device '{device}'", platform.check_device, device)
    options = dict(platform.options)
    made = _try("cannot make a worker's environment", platform.worker_environment, device, 1, options)
    if not isinstance(made, dict) or not all(isinstance(it, str) for pair in made.items() for it in pair):
        raise _Broken("its worker_environment() is no dict of texts")


def _touched(value: str, packages: list[str]) -> str | None:
    """What the class has done that it must leave to workers."""
    own = value.partition(":")[0].partition(".")[0]
    wanted = {*HEAVY, *(package.replace("-", "_") for package in packages)} - {own}
    if heavy := sorted(wanted & sys.modules.keys()):
        return f"it imports {', '.join(heavy)} in the serving process, which only its workers may"
    opened = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the directory's own descriptor is closed already
            continue
    devices = sorted({it for it in opened if it.startswith("/dev/") and not it.startswith(HARMLESS)})
    return f"it opens {', '.join(devices)} in the serving process, which only its workers may" if devices else None
