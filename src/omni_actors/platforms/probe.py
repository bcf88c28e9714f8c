"""Installed platform plugins, looked at before the serving process imports one.

Each plugin is imported, made and asked in a process of its own, all at once, under a deadline. So whatever a plugin
does (it hangs, exits, crashes, floods its output, imports torch, opens the device), the serving process reads a
sentence about it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import msgspec

from omni_actors.platforms import plugin_check
from omni_actors.platforms.inquiry import Answer, Inquiry, ask, one_line
from omni_actors.platforms.platform import PlatformError
from omni_actors.plugins import installed

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

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

DEADLINE_S = 20.0
DEADLINE_VARIABLE = "OMNI_ACTORS_PROBE_TIMEOUT_S"
"""Environment variable: seconds that plugins get to answer, instead of :data:`DEADLINE_S`."""

State = Literal["usable", "present", "absent", "broken"]


@dataclass(frozen=True, slots=True)
class PluginReport:
    """What is known of a plugin. ``name`` and ``value`` are its entry point's, ``distribution`` and ``version`` of the
    package that brings it (empty if that cannot be known). ``state``:

    - ``usable``: it works, and its device can be used here;
    - ``present``: it works, its device is here and cannot be used, for ``reason``;
    - ``absent``: it works, and there is no such device here;
    - ``broken``: it must not be imported, for ``reason``.
    """

    name: str
    value: str
    distribution: str
    version: str
    state: State
    reason: str

    def __str__(self) -> str:
        brought = f" of {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"platform plugin '{self.name}'{brought} ({self.value})"


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
    refusals = [_refusal(plugin, found) for plugin in found]
    chosen = [(plugin, refused) for plugin, refused in zip(found, refusals, strict=True) if only in (None, plugin.name)]
    asked = [plugin for plugin, refused in chosen if not refused]
    answers = {}
    if asked:
        script = Path(plugin_check.__file__)
        inquiries = [Inquiry(script, {"name": plugin.name, "value": plugin.value}) for plugin in asked]
        within = deadline_s() if within_s is None else within_s
        answers = dict(zip(map(id, asked), ask(inquiries, within), strict=True))
    return tuple(_report(plugin, refused or _judge(answers[id(plugin)])) for plugin, refused in chosen)


def deadline_s() -> float:
    """What plugins get to answer. Raises :class:`PlatformError` when :data:`DEADLINE_VARIABLE` has no number of
    seconds."""
    said = os.environ.get(DEADLINE_VARIABLE)
    if not said:
        return DEADLINE_S
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        raise PlatformError(f"{DEADLINE_VARIABLE} takes a number of seconds, such as {DEADLINE_S:g}; it is {said!r}")
    return seconds


def _refusal(plugin: EntryPoint, all_of_them: list[EntryPoint]) -> str:
    """Why a plugin is not even asked."""
    if not NAME.fullmatch(plugin.name):
        return "a platform's name is letters, digits, - and _: settings and devices are called by it"
    if plugin.name == "cpu" or plugin.name in BUILTINS:
        return "a builtin platform has that name; the plugin has to be called something else"
    if Counter(it.name for it in all_of_them)[plugin.name] > 1:
        rivals = sorted({_distribution(it)[0] or it.value for it in all_of_them if it.name == plugin.name})
        return f"more than one plugin has that name ({', '.join(rivals)}); uninstall all but one"
    return ""


def _judge(answer: Answer) -> tuple[State, str] | str:
    """State and reason, or only a reason: then it is broken."""
    if answer.trouble:
        return answer.trouble
    try:
        found = msgspec.convert(answer.value, _Found)
    except msgspec.ValidationError as error:
        return f"it answered nonsense: {error}"
    if found.broken:
        return found.broken
    return "usable" if found.usable else "present" if found.present else "absent", found.reason


def _report(plugin: EntryPoint, judged: tuple[State, str] | str) -> PluginReport:
    state: State
    state, reason = ("broken", judged) if isinstance(judged, str) else judged
    return PluginReport(plugin.name, plugin.value, *_distribution(plugin), state, one_line(reason))


def _distribution(plugin: EntryPoint) -> tuple[str, str]:
    if plugin.dist is None:
        return "", ""
    return plugin.dist.name or "", plugin.dist.version or ""
