"""The order of the checks of ``doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from omni_actors.entrypoints.doctor import hardware
from omni_actors.entrypoints.doctor.deep import open_devices
from omni_actors.entrypoints.doctor.plugins import extension_findings, pipeline_findings
from omni_actors.entrypoints.doctor.report import Report, Section
from omni_actors.entrypoints.doctor.system import port_findings, system_findings, unix_finding
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.platforms.probe import probe_plugins
from omni_actors.platforms.versions import version_findings


def examine(
    asked: str | None = None,
    *,
    hosts: Sequence[str] = ("127.0.0.1",),
    port: int = 8000,
    port_asked: bool = False,
    unix_path: str | None = None,
    deep_within_s: float | None = None,
) -> Report:
    """Return the whole report of ``doctor``. ``asked`` is the platform that was named, if one was. ``unix_path``
    replaces ``hosts`` and ``port`` as the address that a server would listen on.

    Blocks while plug-ins are examined (at most :func:`~omni_actors.platforms.probe.deadline_s`), and with
    ``deep_within_s`` for at most that long while devices are opened. Imports no torch, and opens no device in this
    process.
    """
    reports = probe_plugins()
    found = hardware.find_hardware(reports)
    chosen, choice = hardware.choose(asked, found, reports)
    needed = hardware.needed_packages(found, chosen or asked or "")
    doors = port_findings(hosts, port, port_asked) if unix_path is None else [unix_finding(unix_path)]
    sections = [
        Section("system", "System", (*system_findings(), *doors)),
        Section("packages", "Packages", (*version_findings(needed), *hardware.build_findings())),
        Section("platforms", "Platforms", (choice, *hardware.platform_findings(found, asked, chosen))),
        Section("devices", "Devices", tuple(hardware.device_findings(found))),
        Section("engines", "Engines", tuple(hardware.engine_findings(found, chosen))),
        Section("pipelines", "Pipelines", tuple(pipeline_findings())),
        Section("extensions", "Plug-ins' engines, connectors and balancers", tuple(extension_findings())),
        Section("transports", "Transports", tuple(hardware.transport_findings(found))),
    ]
    if deep_within_s is not None:
        opened = tuple(open_devices(found, chosen, deep_within_s))
        nothing = Finding("none", Verdict.WARNING, "no platform has a device that could be opened")
        sections.append(Section("opened", "Devices, opened", opened or (nothing,)))
    return Report(chosen, tuple(sections), tuple(hardware.as_builtins(it, chosen) for it in found))
