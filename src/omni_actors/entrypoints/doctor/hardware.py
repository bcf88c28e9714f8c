"""The platforms of this machine, builtin and out of tree: the devices of each, and the engines for them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from packaging.utils import canonicalize_name

from omni_actors.documents import platform_page
from omni_actors.entrypoints.doctor.system import size
from omni_actors.pipelines.extensions import CONNECTORS
from omni_actors.pipelines.planning import engines
from omni_actors.pipelines.planning.versions import PACKAGES
from omni_actors.pipelines.strategy import VLLM
from omni_actors.platforms.machine import torch_build
from omni_actors.platforms.platform import (
    Detection,
    Device,
    Finding,
    OmniPlatform,
    PlatformError,
    Verdict,
    default_options,
)
from omni_actors.platforms.probe import BUILTINS, PluginReport
from omni_actors.platforms.select import load, select
from omni_actors.platforms.versions import version_findings

CPU = "omni_actors.platforms.cpu:CpuPlatform"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One platform and its devices. ``plugin`` is the report on an out-of-tree platform; ``platform`` is ``None`` if
    the platform must not be imported."""

    name: str
    detection: Detection
    platform: OmniPlatform | None
    devices: tuple[Device, ...] = ()
    plugin: PluginReport | None = None

    @property
    def state(self) -> str:
        if self.plugin is not None and self.plugin.state == "broken":
            return "broken"
        return "usable" if self.detection else "present" if self.detection.present else "absent"


def find_hardware(reports: tuple[PluginReport, ...]) -> tuple[Hardware, ...]:
    """Return the builtin platforms in order of detection, then the cpu, then the plug-ins, of which only usable ones
    are imported."""
    builtin = [_builtin(name, target) for name, target in {**BUILTINS, "cpu": CPU}.items()]
    return (*builtin, *map(_plugin, reports))


def choose(asked: str | None, found: tuple[Hardware, ...], reports: tuple[PluginReport, ...]) -> tuple[str, Finding]:
    """Return the platform of stages that name none, and a finding about the choice."""
    builtins = {it.name: it.platform for it in found if it.platform is not None and it.plugin is None}
    try:
        chosen = select(asked, reports=reports, builtins=builtins)
    except PlatformError as error:
        return "", Finding("default", Verdict.PROBLEM, error.info.message, _remedy_of_choice(asked))
    detection = chosen.detect()
    if not detection:  # it can be planned for here, no more
        return "", Finding("default", Verdict.PROBLEM, f"'{chosen.name}' cannot be used: {detection.reason}")
    how = "asked for" if asked else "no accelerator can be used" if chosen.name == "cpu" else "detected"
    return chosen.name, Finding("default", Verdict.OK, f"'{chosen.name}', {how}: {detection.reason}")


def platform_findings(found: tuple[Hardware, ...], asked: str | None, chosen: str) -> Iterator[Finding]:
    """Yield the findings of each platform. Faults of a platform that was not asked for are no problems."""
    for it in found:
        needed = it.name in (asked, chosen)
        if it.plugin is not None:
            yield _about_plugin(it.plugin, needed)
        if it.platform is None:
            continue
        if it.state == "absent" and not needed:
            yield Finding(it.name, Verdict.OK, it.detection.reason)
            continue
        for finding in _diagnosis(it.platform):
            yield (
                finding
                if needed or finding.verdict is not Verdict.PROBLEM
                else replace(finding, verdict=Verdict.WARNING)
            )


def device_findings(found: tuple[Hardware, ...]) -> Iterator[Finding]:
    for it in found:
        for device in it.devices if it.detection else ():
            about = ", ".join(filter(None, (device.description, size(device.memory), device.id)))
            if device.trouble:
                yield Finding(device.name, Verdict.WARNING, f"{about}: {device.trouble}", "leave it out of `devices`")
            else:
                yield Finding(device.name, Verdict.OK, about)


def engine_findings(found: tuple[Hardware, ...], chosen: str) -> Iterator[Finding]:
    """Yield, for each engine of a usable platform, its class and its required packages."""
    for it in found:
        if it.platform is None or not it.detection:
            continue
        for kind, engine in it.platform.engines.items():
            subject = f"{it.name} {kind}"
            if kind == VLLM and (missing := engines.missing_for(it.platform, engines.installed())):
                yield Finding(subject, Verdict.OK, f"{missing}: torch's engines compute", platform_page(it.name))
                continue
            troubles = _package_troubles({**it.platform.distributions, **PACKAGES.get(kind, {})})
            if not troubles:
                yield Finding(subject, Verdict.OK, engine)
            for trouble in troubles:
                # Of the chosen platform it is among the packages' problems already.
                verdict = Verdict.WARNING if it.name == chosen else Verdict.OK
                yield Finding(subject, verdict, f"{trouble.subject} {trouble.found}", trouble.remedy)


def _package_troubles(needed: Mapping[str, str]) -> list[Finding]:
    names = set(map(canonicalize_name, needed))
    return [it for it in version_findings(needed) if it.subject in names and it.verdict is not Verdict.OK]


def transport_findings(found: tuple[Hardware, ...]) -> Iterator[Finding]:
    everywhere = ", ".join(connector for connector in CONNECTORS.builtins if connector != "device")
    yield Finding("through the host", Verdict.OK, f"{everywhere}: on every platform")
    for it in found:
        if it.platform is None or not it.detection:
            continue
        ways = ", ".join(it.platform.transports) or "none; payloads go through the host's memory"
        yield Finding(f"{it.name} device to device", Verdict.OK, ways)
        between = it.platform.collectives or "none; a replica is one process"
        yield Finding(f"{it.name} collectives", Verdict.OK, between)


def as_builtins(it: Hardware, chosen: str) -> dict[str, Any]:
    """Return the platform for a program.

    The keys are ``name``, ``kind`` (``builtin`` or ``plugin``), ``state`` (``usable``, ``present``, ``absent`` or
    ``broken``), ``reason`` and ``selected``; for a platform that may be imported ``devices``, ``dtypes``, ``engines``,
    ``transports``, ``collectives``, ``quantization``, ``visibility`` and ``options``; for a plug-in also
    ``entry_point``, ``distribution`` and ``version``.
    """
    facts: dict[str, Any] = {
        "name": it.name,
        "kind": "builtin" if it.plugin is None else "plugin",
        "state": it.state,
        "reason": it.detection.reason,
        "selected": it.name == chosen,
    }
    if it.plugin is not None:
        facts |= {
            "entry_point": it.plugin.value,
            "distribution": it.plugin.distribution,
            "version": it.plugin.version,
        }
    if it.platform is not None:
        facts |= {
            "devices": [asdict(device) for device in it.devices] if it.detection else [],
            "dtypes": list(it.platform.dtypes),
            "engines": dict(it.platform.engines),
            "transports": list(it.platform.transports),
            "collectives": it.platform.collectives,
            "quantization": dict(it.platform.quantization),
            "visibility": {name: os.environ.get(name) for name in it.platform.visibility},
            "options": default_options(it.platform),
        }
    return facts


def build_findings() -> Iterator[Finding]:
    """Yield the hardware that the installed torch was built for, which its version need not show."""
    build = torch_build()
    if build is None or not build.known:
        return
    kinds = (("CUDA", build.cuda), ("ROCm", build.hip), ("Intel GPUs", build.xpu))
    named = " and ".join(f"{kind} ({version})" for kind, version in kinds if version)
    yield Finding("torch build", Verdict.OK, f"{build.version}, for {named or 'processors alone'}")


def needed_packages(found: tuple[Hardware, ...], chosen: str) -> Mapping[str, str]:
    """Return the packages that the default engine of autoregressive stages needs on the chosen platform. The
    environment of vLLM holds versions that the other engine does not accept, and still serves."""
    for it in found:
        if it.name == chosen and it.platform is not None:
            usable = VLLM in it.platform.engines and not engines.missing_for(it.platform, engines.installed())
            kind = VLLM if usable else "autoregressive"
            return {**PACKAGES[kind], **it.platform.distributions}
    return PACKAGES["autoregressive"]


def _builtin(name: str, target: str) -> Hardware:
    platform = load(target)
    detection = platform.detect()
    return Hardware(name, detection, platform, platform.devices() if detection else ())


def _plugin(report: PluginReport) -> Hardware:
    detection = Detection(report.state == "usable", report.state in ("usable", "present"), report.reason)
    if report.state != "usable":
        return Hardware(report.name, detection, None, plugin=report)
    try:
        platform = load(report.value)
        return Hardware(report.name, detection, platform, platform.devices(), report)
    except (Exception, SystemExit) as error:
        reason = f"it was sound when it was looked at, and is not here: {error!r}"
        broken = replace(report, state="broken", reason=reason)
        return Hardware(report.name, Detection(False, False, reason), None, plugin=broken)


def _about_plugin(report: PluginReport, needed: bool) -> Finding:
    subject = f"plugin {report.name}"
    where = f"{report.distribution} {report.version}".strip() or report.value
    if report.state == "broken":
        verdict = Verdict.PROBLEM if needed else Verdict.WARNING
        remedy = f"pip uninstall {report.distribution}" if report.distribution else "uninstall it"
        return Finding(subject, verdict, f"broken ({where}): {report.reason}", f"{remedy}, or a version that works")
    if report.state == "present":
        verdict = Verdict.PROBLEM if needed else Verdict.WARNING
        return Finding(subject, verdict, f"cannot be used ({where}): {report.reason}")
    return Finding(subject, Verdict.OK, f"{report.state} ({where}): {report.reason}")


def _diagnosis(platform: OmniPlatform) -> tuple[Finding, ...]:
    """Return a platform's own findings, without its devices, which are reported separately. The code is a vendor's: it
    may fail, and serving does not need it."""
    try:
        found = platform.diagnose()
        if not all(isinstance(it, Finding) for it in found):
            raise TypeError("it returns something other than findings")
        devices = {device.name for device in platform.devices()} if platform.detect() else set()
        return tuple(it for place, it in enumerate(found) if not place or it.subject not in devices)
    except Exception as error:
        return (Finding(platform.name, Verdict.WARNING, f"its own diagnosis fails: {error!r}"),)


def _remedy_of_choice(asked: str | None) -> str:
    return "" if asked else "--platform NAME, or OMNI_ACTORS_PLATFORM"
