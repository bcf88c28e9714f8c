"""Which platform a deployment runs on.

Order: the one that was asked for by name; else the one out-of-tree platform that detects its device; else the first
builtin that does; else cpu, and that is said. Two out-of-tree claims are an error that names both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform, PlatformError

log = logging.getLogger(__name__)

GROUP = "omni_actors.platforms"
"""Entry points ``name = package.module:PlatformClass``."""

BUILTINS: dict[str, str] = {"cuda": "omni_actors.platforms.cuda:CudaPlatform"}
"""Accelerators of this package in order of detection: name → dotted name. The cpu is what is left when none answers."""


def select(name: str | None = None, plugins: Iterable[EntryPoint] | None = None) -> OmniPlatform:
    """The platform called ``name``, or the one that fits this machine.

    A plugin that cannot be imported or that raises while it detects is one warning; it is an error
    (:class:`PlatformError`) only when it was asked for by name. ``plugins`` replaces the installed entry points.
    """
    found = list(entry_points(group=GROUP) if plugins is None else plugins)
    if name is not None:
        return _by_name(name, found)
    claims = []
    for plugin in found:
        try:
            platform = _make(plugin.value)
            if platform.detect():
                claims.append((plugin.name, platform))
        except Exception as error:
            log.warning("platform plugin '%s' (%s) is broken and ignored: %r", plugin.name, plugin.value, error)
    if len(claims) > 1:
        names = " and ".join(f"'{claim}'" for claim, _ in claims)
        raise PlatformError(f"platforms {names} both claim this machine; choose one with --platform")
    if claims:
        return claims[0][1]
    for builtin, target in BUILTINS.items():
        platform = _make(target)
        detection = platform.detect()
        if detection:
            log.info("platform '%s' detected: %s", builtin, detection.reason)
            return platform
        if detection.present:
            log.warning("platform '%s' cannot be used: %s", builtin, detection.reason)
    log.warning("no accelerator found: every stage runs on the cpu")
    return CpuPlatform()


def names(plugins: Iterable[EntryPoint] | None = None) -> list[str]:
    """The platforms that may be asked for by name, whether or not they work here."""
    found = entry_points(group=GROUP) if plugins is None else plugins
    return sorted({"cpu", *BUILTINS, *(plugin.name for plugin in found)})


def _by_name(name: str, plugins: list[EntryPoint]) -> OmniPlatform:
    if name == "cpu":
        return CpuPlatform()
    target = BUILTINS.get(name) or next((plugin.value for plugin in plugins if plugin.name == name), None)
    if target is None:
        raise PlatformError(f"there is no platform '{name}'; there are: {', '.join(names(plugins))}")
    try:
        platform = _make(target)
        detection = platform.detect()
    except Exception as error:
        raise PlatformError(f"platform '{name}' ({target}) cannot be used: {error!r}") from error
    if not detection and not platform.plannable:
        raise PlatformError(f"platform '{name}' cannot be used on this machine: {detection.reason}")
    return platform


def _make(target: str) -> OmniPlatform:
    made = resolve_name(target)()
    if not isinstance(made, OmniPlatform):
        raise TypeError(f"{target} is no OmniPlatform")
    return made
