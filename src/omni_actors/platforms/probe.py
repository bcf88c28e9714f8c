"""The probing of installed platform plug-ins before the serving process imports one: see
:mod:`omni_actors.plugins.probe`.

Reports are not kept on disk, since devices come and go.
"""

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
"""The group of entry points ``name = package.module:PlatformClass``."""

BUILTINS: dict[str, str] = {
    "cuda": "omni_actors.platforms.cuda:CudaPlatform",
    "rocm": "omni_actors.platforms.rocm:RocmPlatform",
    "ascend": "omni_actors.platforms.ascend:AscendPlatform",
    "xpu": "omni_actors.platforms.xpu:XpuPlatform",
    "musa": "omni_actors.platforms.musa:MusaPlatform",
}
"""Built-in accelerators in the order of detection: name → dotted name. Without any of them, the platform is cpu."""


class _Found(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of :func:`plugin_check.answer`."""

    broken: str = ""
    usable: bool = False
    present: bool = False
    reason: str = ""


def installed_plugins() -> list[EntryPoint]:
    return list(installed(GROUP))


def probe_plugins(
    plugins: Iterable[EntryPoint] | None = None, *, only: str | None = None, within_s: float | None = None
) -> tuple[PluginReport, ...]:
    """Return a report on each platform plug-in, in order. A plug-in's fault raises nothing.

    Args:
        plugins: The plug-ins; ``None`` for the installed ones.
        only: The name of the plug-ins to report on; ``None`` for all.
        within_s: Seconds for all answers together, which the call waits for at most; ``None`` for :func:`deadline_s`.
    """
    found = installed_plugins() if plugins is None else list(plugins)
    return probe(PLATFORMS, found, only=only, within_s=deadline_s() if within_s is None and found else within_s)


def deadline_s() -> float:
    """Return the seconds for plug-ins' answers. Raises :class:`PlatformError` if :data:`DEADLINE_VARIABLE` is no number
    of seconds."""
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
