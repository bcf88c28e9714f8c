"""The report of ``doctor``, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from omni_actors.platforms.platform import Finding, Verdict

SCHEMA = 1
"""Version of :meth:`Report.as_builtins`, raised when a key disappears or changes its meaning."""

_STYLE = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one subject. ``name`` is the section's key for programs."""

    name: str
    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report.

    ``platform`` is the platform of stages that name none, empty if none can be chosen. A finding is a problem only if
    it prevents the deployment that was asked for. ``platforms`` has the facts of each platform, for programs.
    """

    platform: str
    sections: tuple[Section, ...]
    platforms: tuple[Mapping[str, Any], ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(it for section in self.sections for it in section.findings if it.verdict is Verdict.PROBLEM)

    @property
    def exit_code(self) -> int:
        """The exit status: 0 if the machine can serve as asked, 1 if something prevents that."""
        return 1 if self.problems else 0

    def as_builtins(self) -> dict[str, Any]:
        """Return the report with the keys ``schema``, ``usable``, ``exit_code``, ``platform``, ``platforms`` and
        ``sections``.

        ``sections`` maps a name to findings, each with ``subject``, ``verdict`` (``ok``, ``warning`` or ``problem``),
        ``found`` and ``remedy``.
        """
        return {
            "schema": SCHEMA,
            "usable": not self.problems,
            "exit_code": self.exit_code,
            "platform": self.platform or None,
            "sections": {
                section.name: [
                    {"subject": it.subject, "verdict": it.verdict.value, "found": it.found, "remedy": it.remedy}
                    for it in section.findings
                ]
                for section in self.sections
            },
            "platforms": [dict(platform) for platform in self.platforms],
        }

    def as_text(self) -> RenderableType:
        parts: list[RenderableType] = []
        for section in self.sections:
            table = Table(box=None, pad_edge=False, show_header=False, title=section.title, title_justify="left")
            table.title_style = "bold"
            table.add_column(no_wrap=True)
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for it in section.findings:
                found = Text(it.found)
                if it.remedy:
                    found.append(f"\n→ {it.remedy}", style="cyan")
                table.add_row(Text(it.verdict.value, style=_STYLE[it.verdict]), Text(it.subject), found)
            parts += [table, Text()]
        return Group(*parts, self._summary())

    def _summary(self) -> Text:
        if not self.problems:
            return Text(f"Stages that name no platform will run on '{self.platform}'.", style="bold")
        count = len(self.problems)
        return Text(f"{count} problem{'s' if count > 1 else ''}: the machine cannot serve.", style="bold red")
