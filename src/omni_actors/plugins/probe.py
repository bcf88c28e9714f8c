"""Examination of installed plug-ins before the serving process imports one.

Each plug-in is imported and examined in a process of its own, all at once, under a deadline. So whatever a plug-in does
(hangs, exits, crashes, floods its output, imports torch, opens a device), the serving process gets a sentence about the
plug-in. Findings about plug-ins that depend on code alone are kept on disk until the code changes
(:mod:`omni_actors.plugins.records`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

from omni_actors.plugins import installed
from omni_actors.plugins.records import Record, Records
from omni_actors.plugins.subprocess_probe import ProbeAnswer, SubprocessProbe, one_line, run_probes
from omni_actors.protocol.errors import ErrorInfo, OmniError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

DEADLINE_S = 20.0
DEADLINE_VARIABLE = "OMNI_ACTORS_PROBE_TIMEOUT_S"
"""Environment variable: seconds for plug-ins to answer, instead of :data:`DEADLINE_S`."""

State = Literal["usable", "present", "absent", "broken"]

Judged = tuple[State, str, Mapping[str, Any]]
"""State, reason and facts of a plug-in that answered."""


@dataclass(frozen=True, slots=True)
class PluginReport:
    """A report on a plug-in.

    ``name`` and ``value`` are its entry point's, ``distribution`` and ``version`` those of its package (empty if
    unknown), ``kind`` is the kind of plug-in, ``facts`` are further facts from the plug-in, and ``state`` is one of:

    - ``usable``: the plug-in works (a platform: and its device can be used here);
    - ``present``: a platform that works, whose device is here and cannot be used, for ``reason``;
    - ``absent``: a platform that works, and there is no such device here;
    - ``broken``: the plug-in must not be imported, for ``reason``.
    """

    name: str
    value: str
    distribution: str
    version: str
    state: State
    reason: str
    kind: str = "platform"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        brought = f" of {self.distribution} {self.version}".rstrip() if self.distribution else ""
        return f"{self.kind} plugin '{self.name}'{brought} ({self.value})"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plug-in.

    ``script`` is a file whose ``answer({"name", "value"})`` examines one plug-in. The answer is ``{"broken":
    sentence}``, or a value that ``judge`` turns into a state, a reason and facts; ``judge`` raises :class:`ValueError`
    for nonsense. ``argument`` is merged into the script's argument. ``taken`` are names of this package's own. ``kept``
    says that findings hold until the plug-in's code changes.
    """

    word: str
    group: str
    script: Path
    judge: Callable[[Any], Judged]
    taken: Iterable[str] = ()
    kept: bool = True
    argument: Mapping[str, Any] = field(default_factory=dict)
    pattern: re.Pattern[str] = NAME
    spelling: str = "letters, digits, - and _: settings use this name"


def probe(
    kind: Kind,
    plugins: Iterable[EntryPoint] | None = None,
    *,
    only: str | None = None,
    anew: bool = False,
    forgive: bool = False,
    within_s: float | None = None,
) -> tuple[PluginReport, ...]:
    """Return a report on each plug-in, in order. Blocks until the plug-ins have answered.

    Args:
        kind: The kind of plug-in.
        plugins: The entry points; by default the installed ones.
        only: Report only on plug-ins of this name.
        anew: Examine plug-ins again although their code is unchanged since the last time.
        forgive: Examine plug-ins again that were broken.
        within_s: The most seconds to wait; by default :func:`deadline_s`.

    Returns:
        The reports. Without plug-ins the call costs nothing, and no plug-in can make it raise.
    """
    found = list(installed(kind.group)) if plugins is None else list(plugins)
    refusals = {id(plugin): _refusal(kind, plugin, found) for plugin in found}
    chosen = [plugin for plugin in found if only in (None, plugin.name)]
    records = Records() if kind.kept else None
    known: dict[int, Record] = {}
    if records is not None and not anew:
        read = {id(it): record for it in chosen if (record := records.read(it)) is not None}
        known = {key: record for key, record in read.items() if not (forgive and record.broken)}
    asked = [plugin for plugin in chosen if not refusals[id(plugin)] and id(plugin) not in known]
    answers: dict[int, ProbeAnswer] = {}
    if asked:
        probes = [
            SubprocessProbe(kind.script, {**kind.argument, "name": plugin.name, "value": plugin.value})
            for plugin in asked
        ]
        within = deadline_s() if within_s is None else within_s
        answers = dict(zip(map(id, asked), run_probes(probes, within), strict=True))
    reports = []
    for plugin in chosen:
        if refusal := refusals[id(plugin)]:
            reports.append(_report(kind, plugin, ("broken", refusal, {})))
            continue
        if (record := known.get(id(plugin))) is None:
            record = _record_of(answers[id(plugin)])
            if records is not None:
                records.write(plugin, record)
        reports.append(_report(kind, plugin, _judged(kind, record)))
    return tuple(reports)


def deadline_s() -> float:
    """Return the seconds for plug-ins to answer. Raises :class:`OmniError` if :data:`DEADLINE_VARIABLE` is not a number
    of seconds."""
    said = os.environ.get(DEADLINE_VARIABLE)
    if not said:
        return DEADLINE_S
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86400:
        message = f"{DEADLINE_VARIABLE} takes a number of seconds, such as {DEADLINE_S:g}; it is {said!r}"
        raise OmniError(ErrorInfo(message=message, type="configuration_error", code="bad_setting", status=500))
    return seconds


def brought_by(plugin: EntryPoint) -> tuple[str, str]:
    """Return the distribution of a plug-in, and its version; empty texts if unknown."""
    if plugin.dist is None:
        return "", ""
    return plugin.dist.name or "", plugin.dist.version or ""


def _refusal(kind: Kind, plugin: EntryPoint, all_of_them: list[EntryPoint]) -> str:
    """Return why a plug-in is refused without examination, or an empty text."""
    if not kind.pattern.fullmatch(plugin.name):
        return f"a {kind.word}'s name is {kind.spelling}"
    if plugin.name in kind.taken:
        return f"a built-in {kind.word} has that name; give the plug-in another name"
    if Counter(it.name for it in all_of_them)[plugin.name] > 1:
        rivals = sorted({brought_by(it)[0] or it.value for it in all_of_them if it.name == plugin.name})
        return f"more than one plugin has that name ({', '.join(rivals)}); uninstall all but one"
    return ""


def _record_of(answer: ProbeAnswer) -> Record:
    return Record(trouble=answer.trouble, answer=None if answer.trouble else answer.value)


def _judged(kind: Kind, record: Record) -> Judged:
    if record.trouble:
        return "broken", record.trouble, {}
    if isinstance(record.answer, dict) and record.answer.get("broken"):
        return "broken", str(record.answer["broken"]), {}
    try:
        return kind.judge(record.answer)
    except ValueError as error:
        return "broken", f"its answer makes no sense: {error}", {}


def _report(kind: Kind, plugin: EntryPoint, judged: Judged) -> PluginReport:
    state, reason, facts = judged
    distribution, version = brought_by(plugin)
    return PluginReport(plugin.name, plugin.value, distribution, version, state, one_line(reason), kind.word, facts)
