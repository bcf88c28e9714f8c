"""The check that opens a device as a worker does, run as a subprocess probe
(:mod:`omni_actors.plugins.subprocess_probe`)."""

from __future__ import annotations

import time
from pkgutil import resolve_name
from typing import Any

SIDE = 256
"""Rows and columns of the matrices that are multiplied. They hold ones and twos, so that the product is exact in any
dtype."""


def answer(argument: dict[str, Any]) -> dict[str, Any]:
    """Open a device and compute on it, as a worker does.

    Args:
        argument: ``platform`` (dotted name of the class), ``device`` (the worker's name for it), ``options``, ``dtype``
            and ``engines`` (the kinds to import).

    Returns:
        ``capability``, ``memory``, the chosen kernels, and the time of each step.
    """
    platform = resolve_name(argument["platform"])
    runtime = resolve_name(platform.runtime)(argument["device"], argument["options"])
    seconds = {}
    started = time.monotonic()
    import torch

    seconds["torch"] = time.monotonic() - started
    started = time.monotonic()
    runtime.open()
    seconds["open"] = time.monotonic() - started
    started = time.monotonic()
    dtype = getattr(torch, argument["dtype"])
    ones = torch.ones(SIDE, SIDE, dtype=dtype, device=runtime.torch_device)
    product = ones @ (ones * 2)
    runtime.synchronize()
    if not bool((product == 2 * SIDE).all()):
        raise ArithmeticError(f"a product of ones and twos is not {2 * SIDE} everywhere")
    seconds["product"] = time.monotonic() - started
    capability, memory, transport = runtime.capability(), runtime.memory(), runtime.transport()
    return {
        "torch": torch.__version__,
        "torch_device": str(runtime.torch_device),
        "capability": capability.name,
        "features": sorted(capability.features),
        "memory": {name: getattr(memory, name) for name in ("total", "free", "used", "peak")},
        "kernels": _own_kernels(runtime.kernels),
        "graphs": runtime.graphs() is not None,
        "transport": None if transport is None else transport.kind,
        "patches": {patch.name: patch.why for patch in runtime.patches},
        "engines": {kind: _trouble(platform.engines[kind]) for kind in argument["engines"]},
        "seconds": {name: round(taken, 3) for name, taken in seconds.items()},
    }


def _own_kernels(chosen: Any) -> list[str]:
    """Return the names of the kernels that replace plain torch."""
    from dataclasses import fields

    from omni_actors.platforms.runtime.kernels import Kernels

    plain = Kernels()
    return [item.name for item in fields(Kernels) if getattr(chosen, item.name) != getattr(plain, item.name)]


def _trouble(engine: str) -> str:
    """Return why the engine's class cannot be imported; an empty text if it can."""
    try:
        resolve_name(engine)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
