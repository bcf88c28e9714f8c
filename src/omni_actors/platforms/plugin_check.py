"""The check of a platform plug-in, run as a subprocess probe: see :mod:`omni_actors.platforms.probe`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

import msgspec

from omni_actors.platforms.inspection import Broken, attempt, check_options, check_untouched
from omni_actors.plugins.contract import contract_trouble

FACTS: dict[str, Any] = {
    "runtime": str,
    "default_dtype": str,
    "dtypes": tuple[str, ...],
    "engines": dict[str, str],
    "distributions": dict[str, str],
    "visibility": tuple[str, ...],
    "collectives": str,
    "vllm_builds": tuple[str, ...],
    "transports": tuple[str, ...],
    "quantization": dict[str, str],
}
"""Attributes of a platform's class, beside its name, contract and options → the type of each."""


def answer(argument: dict[str, str]) -> dict[str, Any]:
    """Examine a platform plug-in. Return ``{"broken": sentence}``, or ``usable``, ``present`` and ``reason`` of its
    detection."""
    name, value = argument["name"], argument["value"]
    try:
        found = _look(name, value)
        check_untouched(value, found.pop("packages"))
    except Broken as broken:
        return {"broken": str(broken)}
    return found


def _look(name: str, value: str) -> dict[str, Any]:
    from omni_actors.platforms.platform import CONTRACT, Detection, OmniPlatform

    kind = attempt("cannot be imported", resolve_name, value)
    if not (isinstance(kind, type) and issubclass(kind, OmniPlatform)):
        raise Broken(f"{value} is no subclass of OmniPlatform")
    if trouble := contract_trouble(kind, "platform", CONTRACT):
        raise Broken(f"it {trouble}")
    if getattr(kind, "name", None) != name:
        raise Broken(f"its entry point is called '{name}', and the platform itself {getattr(kind, 'name', None)!r}")
    platform = attempt("cannot be made", kind)
    _check_facts(platform)
    detection = attempt("cannot detect its device", platform.detect)
    if not isinstance(detection, Detection):
        raise Broken(f"its detect() returns {type(detection).__name__}, not a Detection")
    if detection.usable:
        devices = attempt("cannot list its devices", platform.devices)
        _check_devices(devices)
        _check_plan(platform, [device.name for device in devices])
    return {
        "usable": bool(detection.usable),
        "present": bool(detection.present or detection.usable),
        "reason": str(detection.reason),
        "packages": [str(package) for package in kind.distributions],
    }


def _check_facts(platform: Any) -> None:
    for name, kind in FACTS.items():
        try:
            msgspec.convert(getattr(platform, name), kind)
        except msgspec.ValidationError as error:
            raise Broken(f"what it states as {name} is of another type: {error}") from error
    if platform.default_dtype not in platform.dtypes:
        raise Broken(f"its default dtype {platform.default_dtype!r} is none of its dtypes {platform.dtypes!r}")
    from omni_actors.platforms.platform import platform_options

    if not isinstance(platform.options, Mapping):
        raise Broken(f"what it states as options is of another type: {type(platform.options).__name__}, not a dict")
    check_options("its", attempt("states options that cannot be read", platform_options, platform))


def _check_devices(devices: Any) -> None:
    from omni_actors.platforms.platform import Device

    if not isinstance(devices, tuple) or not all(isinstance(device, Device) for device in devices):
        raise Broken("its devices() are no tuple of Device")
    if not devices:
        raise Broken("it says that it can be used and has no device")
    for device in devices:
        texts = (device.name, device.description, device.trouble, device.id or "")
        if not device.name or not all(isinstance(text, str) for text in texts):
            raise Broken(f"it describes a device by something else than texts: {device!r}")
        if device.memory is not None and not isinstance(device.memory, int):
            raise Broken(f"the memory of its device '{device.name}' is no number of bytes: {device.memory!r}")
    if len({device.name for device in devices}) < len(devices):
        raise Broken("two of its devices have one name")


def _check_plan(platform: Any, devices: Iterable[str]) -> None:
    """Check the methods that place a stage on the platform."""
    from omni_actors.platforms.platform import default_options

    cores = attempt("cannot count its cores", platform.cores)
    if not isinstance(cores, int) or cores < 1:
        raise Broken(f"it counts {cores!r} cores")
    options = default_options(platform)
    dtype = attempt("cannot say its usual dtype", platform.usual_dtype, options)
    if dtype not in platform.dtypes:
        raise Broken(f"its usual dtype {dtype!r} is none of its own")
    usual = attempt("cannot say where a stage goes", platform.usual_devices, 0, 1, options)
    if not isinstance(usual, tuple) or not usual or not set(usual) <= set(devices):
        raise Broken(f"its usual_devices() are {usual!r}, which are none of its devices")
    device = usual[0]
    attempt(f"does not know its own device '{device}'", platform.check_device, device)
    if not isinstance(inside := attempt("does not know a device in a worker", platform.worker_device, device), str):
        raise Broken(f"its worker_device() is {inside!r}, which is no text")
    made = attempt("cannot make a worker's environment", platform.worker_environment, device, 1, options)
    if not isinstance(made, dict) or not all(isinstance(it, str) for pair in made.items() for it in pair):
        raise Broken("its worker_environment() is no dict of texts")
