"""The query of ``npu-smi``, which opens the devices: run as a subprocess probe
(:mod:`omni_actors.plugins.subprocess_probe`). Standard library only."""

from __future__ import annotations

import re
import subprocess
from typing import Any

_CHIP = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\S.*?)\s*$")
"""A row of ``npu-smi info -m``: NPU, chip, logical number (which is the device's), name."""

_CAPACITY = re.compile(r"^\s*(HBM|DDR) Capacity\(MB\)\s*:\s*(\d+)\s*$", re.MULTILINE)

_HEALTH = re.compile(r"^\s*Health(?: Status)?\s*:\s*(\S.*?)\s*$", re.MULTILINE)


def answer(argument: dict[str, str]) -> dict[str, Any]:
    """Ask ``npu-smi``; ``argument`` names the ``command``.

    Returns ``trouble``, the reason for a missing answer (empty otherwise), and ``devices``: ``model``, ``memory`` and
    ``trouble`` by the device's number."""
    command = argument["command"]
    try:
        rows = list(filter(None, map(_CHIP.match, _said(command, "info", "-m").splitlines())))
        return {"trouble": "", "devices": {row[3]: _facts(command, row[1], row[2], row[4]) for row in rows}}
    except (OSError, subprocess.CalledProcessError) as error:
        return {"trouble": f"{type(error).__name__}: {error}", "devices": {}}


def _facts(command: str, npu: str, chip: str, model: str) -> dict[str, Any]:
    """Return the facts known to the device's generation."""
    facts: dict[str, Any] = {"model": model, "memory": None, "trouble": ""}
    try:
        capacities = dict(_CAPACITY.findall(_said(command, "info", "-t", "memory", "-i", npu, "-c", chip)))
        facts["memory"] = (int(capacities.get("HBM", 0)) or int(capacities.get("DDR", 0))) << 20 or None
    except (OSError, subprocess.CalledProcessError):
        pass
    try:
        health = _HEALTH.search(_said(command, "info", "-t", "health", "-i", npu, "-c", chip))
        if health and health[1] not in ("OK", "Warning"):
            facts["trouble"] = f"npu-smi says that its health is {health[1]}"
    except (OSError, subprocess.CalledProcessError):
        pass
    return facts


def _said(*command: str) -> str:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    return done.stdout
