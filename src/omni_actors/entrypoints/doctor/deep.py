"""Opening of devices in the way of workers, each in a process of its own under a deadline; this process opens none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_actors.documents import platform_page
from omni_actors.entrypoints.doctor.hardware import Hardware
from omni_actors.entrypoints.doctor.system import size
from omni_actors.pipelines.planning.engines import installed, missing_for
from omni_actors.pipelines.strategy import VLLM
from omni_actors.platforms import probe
from omni_actors.platforms.platform import Finding, OmniPlatform, Verdict, default_options
from omni_actors.plugins.subprocess_probe import ProbeAnswer, SubprocessProbe, run_probes

SCRIPT = Path(probe.__file__).with_name("device_check.py")
"""Script that opens a device. It imports torch, so this process must not import the script."""


def open_devices(found: tuple[Hardware, ...], chosen: str, within_s: float) -> Iterator[Finding]:
    """Open a device of each usable platform: the first device without a known fault. A failure is a problem for the
    ``chosen`` platform and a warning for any other."""
    usable = [(it, it.platform, _sound(it)) for it in found if it.detection and it.platform is not None and it.devices]
    answers = run_probes([_probe(platform, device) for _, platform, device in usable], within_s)
    for (it, _, device), answer in zip(usable, answers, strict=True):
        bad = Verdict.PROBLEM if it.name == chosen else Verdict.WARNING
        page = platform_page(it.name)
        remedy = f"the driver's log, and {page}" if page else "the driver's log, and the plug-in's documentation"
        yield from _findings(f"{it.name}: {device}", answer, bad, remedy)


def _sound(it: Hardware) -> str:
    return next((device.name for device in it.devices if not device.trouble), it.devices[0].name)


def _probe(platform: OmniPlatform, device: str) -> SubprocessProbe:
    options = default_options(platform)
    argument = {
        "platform": f"{type(platform).__module__}:{type(platform).__qualname__}",
        "device": platform.worker_device(device),
        "options": options,
        "dtype": platform.default_dtype,
        "engines": [kind for kind in platform.engines if kind != VLLM or not missing_for(platform, installed())],
    }
    return SubprocessProbe(SCRIPT, argument, platform.worker_environment(device, 1, options))


def _findings(subject: str, answer: ProbeAnswer, bad: Verdict, remedy: str) -> Iterator[Finding]:
    if answer.trouble:
        yield Finding(subject, bad, f"does not open: {answer.trouble}", remedy)
        return
    facts: dict[str, Any] = answer.value
    took = facts["seconds"]
    parts = [
        f"opens in {took['open']:.1f} s (torch {facts['torch']}: {took['torch']:.1f} s)",
        " ".join(filter(None, (facts["capability"], *facts["features"]))),
        _memory(facts["memory"]),
        "kernels: " + (", ".join(facts["kernels"]) or "torch's own"),
        "graphs" if facts["graphs"] else "no graphs",
        f"transport {facts['transport']}" if facts["transport"] else "no transport",
        *(f"patched: {name}" for name in facts["patches"]),
    ]
    yield Finding(subject, Verdict.OK, "; ".join(parts))
    for kind, trouble in facts["engines"].items():
        if trouble:
            yield Finding(f"{subject.partition(':')[0]} {kind}", bad, f"cannot be imported: {trouble}")


def _memory(facts: dict[str, int | None]) -> str:
    return size(facts["total"]) + ("" if facts["free"] is None else f", {size(facts['free'])} free")
