"""The choice of a deployment's platform.

The order is: the platform that was asked for by name; the one plug-in platform that detects its device; the first
built-in accelerator that does; cpu, with a log line. Two plug-ins that claim the machine are an error that names both.

A plug-in is imported only if it is chosen, and only after a subprocess probe found no fault
(:mod:`omni_actors.platforms.probe`).
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
    """Choose a platform.

    The call blocks while plug-ins are probed and drivers are asked. A warning is logged for each broken plug-in, and
    for hardware that is present and cannot be used.

    Args:
        name: The platform's name; ``None`` for the platform that fits this machine.
        plugins: The plug-ins; ``None`` for the installed ones.
        reports: Reports on the plug-ins, if they were probed already.
        builtins: Built-in platforms that have asked their drivers already.

    Raises:
        PlatformError: No platform has the name, the named plug-in is broken, or two plug-ins claim the machine.

    Example:
        >>> select("cpu").name
        'cpu'
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
    """Return the names of all platforms, usable on this machine or not."""
    found = installed_plugins() if plugins is None else plugins
    return sorted({"cpu", *BUILTINS, *(plugin.name for plugin in found)})


def load(target: str) -> OmniPlatform:
    """Make the platform of a dotted name in this process: a built-in platform, or one that :func:`select` chose
    before."""
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
