"""Which platform a deployment runs on.

Order: the one that was asked for by name; else the one out-of-tree platform that detects its device; else the first
builtin that does; else cpu, and that is said. Two out-of-tree claims are an error that names both.

A plugin is imported here only after a look at it in a process of its own has found nothing wrong
(:mod:`omni_actors.platforms.probe`), and only if it is the one that is chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pkgutil import resolve_name

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform, PlatformError
from omni_actors.platforms.probe import BUILTINS, GROUP, PluginReport, installed_plugins, probe_plugins

__all__ = ["BUILTINS", "GROUP", "load", "names", "select"]

log = logging.getLogger(__name__)


def select(
    name: str | None = None,
    plugins: Iterable[EntryPoint] | None = None,
    reports: Sequence[PluginReport] | None = None,
    builtins: Mapping[str, OmniPlatform] | None = None,
) -> OmniPlatform:
    """The platform called ``name``, or the one that fits this machine.

    A plugin that is broken is one warning; it is an error (:class:`PlatformError`) only when it was asked for by name.
    Hardware that is here and cannot be used is a warning too. ``plugins`` replaces the installed entry points. Blocks
    while plugins are looked at (see :func:`~omni_actors.platforms.probe.probe_plugins`), unless ``reports`` has what
    was found of each already, and while drivers are asked, unless ``builtins`` has platforms that have asked theirs.
    """
    if name is not None:
        return _by_name(name, plugins, reports, builtins or {})
    unused = []
    claims = []
    for report in probe_plugins(plugins) if reports is None else reports:
        if report.state == "usable":
            claims.append(report)
        elif report.state == "broken":
            log.warning("%s is broken and ignored: %s", report, report.reason)
        elif report.state == "present":
            log.warning("platform '%s' cannot be used: %s", report.name, report.reason)
            unused.append(report.name)
    if len(claims) > 1:
        named = " and ".join(f"'{report.name}'" for report in claims)
        raise PlatformError(f"platforms {named} both claim this machine; choose one with --platform")
    if claims:
        log.info("platform '%s' detected: %s", claims[0].name, claims[0].reason)
        return _import(claims[0])
    for builtin, target in BUILTINS.items():
        platform = (builtins or {}).get(builtin) or load(target)
        detection = platform.detect()
        if detection:
            log.info("platform '%s' detected: %s", builtin, detection.reason)
            return platform
        if detection.present:
            log.warning("platform '%s' cannot be used: %s", builtin, detection.reason)
            unused.append(builtin)
    found = f"no accelerator can be used ({', '.join(unused)} cannot)" if unused else "no accelerator found"
    log.warning("%s: every stage that names no platform runs on the cpu", found)
    return CpuPlatform()


def names(plugins: Iterable[EntryPoint] | None = None) -> list[str]:
    """The platforms that may be asked for by name, whether or not they work here."""
    found = installed_plugins() if plugins is None else plugins
    return sorted({"cpu", *BUILTINS, *(plugin.name for plugin in found)})


def load(target: str) -> OmniPlatform:
    """The platform of a dotted name, made in this process. For one that is known to be sound: a builtin, or one that
    :func:`select` has chosen before."""
    made = resolve_name(target)()
    if not isinstance(made, OmniPlatform):
        raise TypeError(f"{target} is no OmniPlatform")
    return made


def _by_name(
    name: str,
    plugins: Iterable[EntryPoint] | None,
    looked_at: Sequence[PluginReport] | None,
    builtins: Mapping[str, OmniPlatform],
) -> OmniPlatform:
    if name == "cpu":
        return CpuPlatform()
    if name in BUILTINS:
        platform = builtins.get(name) or load(BUILTINS[name])
        detection = platform.detect()
        if not detection and not platform.plannable:
            raise PlatformError(f"platform '{name}' cannot be used on this machine: {detection.reason}")
        return platform
    found = installed_plugins() if plugins is None else list(plugins)
    reports = probe_plugins(found, only=name) if looked_at is None else [it for it in looked_at if it.name == name]
    if not reports:
        raise PlatformError(f"there is no platform '{name}'; there are: {', '.join(names(found))}")
    report = reports[0]
    if report.state == "broken":
        raise PlatformError(f"{report} is broken: {report.reason}")
    platform = _import(report)
    if report.state != "usable" and not platform.plannable:
        raise PlatformError(f"platform '{name}' cannot be used on this machine: {report.reason}")
    return platform


def _import(report: PluginReport) -> OmniPlatform:
    try:
        return load(report.value)
    except (Exception, SystemExit) as error:
        raise PlatformError(f"{report} can no longer be imported: {error!r}") from error
