"""The output of every benchmark: a table for people, JSON for programs, aims with a verdict."""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

_OPS = {"<=": operator.le, ">=": operator.ge}


@dataclass
class Aim:
    """A figure, its bound, and whether the figure is within the bound."""

    name: str
    value: float
    aim: float
    op: Literal["<=", ">="]

    @property
    def met(self) -> bool:
        return bool(_OPS[self.op](self.value, self.aim))


@dataclass
class Report:
    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, columns: Sequence[str] | None = None) -> None:
        """Print rows and aims."""
        console = Console(width=max(130, Console().width))
        names = list(columns or dict.fromkeys(key for row in self.rows for key in row))
        table = Table(title=self.title)
        for name in names:
            table.add_column(name, justify="left" if name == names[0] else "right")
        for row in self.rows:
            table.add_row(*(_cell(row.get(name)) for name in names))
        console.print(f"machine: {machine()}")
        console.print(table)
        for aim in self.aims:
            console.print(
                f"{'met' if aim.met else 'MISSED':>6}  {aim.name}: {_cell(aim.value)} (aim {aim.op} {aim.aim:g})"
            )
        for note in self.notes:
            console.print(note)

    def write(self, path: Path) -> None:
        aims = [asdict(aim) | {"met": aim.met} for aim in self.aims]
        path.write_text(
            json.dumps({"machine": machine(), "rows": self.rows, "aims": aims, "notes": self.notes}, indent=1) + "\n"
        )


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a rough run of at most 45 s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser


def machine() -> str:
    """Return the machine in one line."""
    model = platform.machine()
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, Linux {platform.release()}, Python {platform.python_version()}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
