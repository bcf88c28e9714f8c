"""Installed platform plugins, looked at before the serving process imports one: see :mod:`omni_actors.plugins.probe`.
What is found of them is not kept: a device may be there now."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec

from omni_actors.platforms import plugin_check
from omni_actors.platforms.platform import PlatformError
from omni_actors.plugins import installed
from omni_actors.plugins import probe as plugins_probe
from omni_actors.plugins.probe import DEADLINE_S, DEADLINE_VARIABLE, NAME, Judged, Kind, PluginReport, State, probe
from omni_actors.protocol.errors import OmniError

__all__ = ["DEADLINE_S", "DEADLINE_VARIABLE", "NAME", "PluginReport", "State", "deadline_s", "probe_plugins"]

GROUP = "omni_actors.platforms"
"""Entry points ``name = package.module:PlatformClass``."""

BUILTINS: dict[str, str] = {
    "cuda": "omni_actors.platforms.cuda:CudaPlatform",
    "rocm": "omni_actors.platforms.rocm:RocmPlatform",
    "ascend": "omni_actors.platforms.ascend:AscendPlatform",
    "xpu": "omni_actors.platforms.xpu:XpuPlatform",
    "musa": "omni_actors.platforms.musa:MusaPlatform",
}
"""Accelerators of this package in order of detection: name → dotted name. The cpu is what is left when none answers."""


class _Found(msgspec.Struct, forbid_unknown_fields=True):
    """What :func:`plugin_check.answer` says."""

    broken: str = ""
    usable: bool = False
    present: bool = False
    reason: str = ""


def installed_plugins() -> list[EntryPoint]:
    return list(installed(GROUP))


def probe_plugins(
    plugins: Iterable[EntryPoint] | None = None, *, only: str | None = None, within_s: float | None = None
) -> tuple[PluginReport, ...]:
    """A report on each of ``plugins`` (default: the installed ones), in their order; on those called ``only`` alone
    where that is given. Blocks for as long as they take to answer, at most ``within_s`` seconds (default:
    :func:`deadline_s`). Without plugins it costs nothing; it never raises because of one.
    """
    found = installed_plugins() if plugins is None else list(plugins)
    return probe(PLATFORMS, found, only=only, within_s=deadline_s() if within_s is None and found else within_s)


def deadline_s() -> float:
    """What plugins get to answer. Raises :class:`PlatformError` when :data:`DEADLINE_VARIABLE` has no number of
    seconds."""
    try:
        return plugins_probe.deadline_s()
    except OmniError as error:
        raise PlatformError(error.info.message) from None


def _judge(answer: Any) -> Judged:
    try:
        found = msgspec.convert(answer, _Found)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    return "usable" if found.usable else "present" if found.present else "absent", found.reason, {}


PLATFORMS = Kind(
    "platform",
    GROUP,
    Path(plugin_check.__file__),
    _judge,
    taken=("cpu", *BUILTINS),
    kept=False,
    spelling="letters, digits, - and _: settings and devices are called by it",
)
