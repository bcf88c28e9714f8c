"""The table of families in ``docs/images-families.md``: ``python -m tests.models.diffusion.table`` writes it.

A row is what a run of the parity tests measured: the error against diffusers' pipeline, rounded up to a power of ten,
and the rows per forward among eight requests that join and leave at random steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.models.diffusion.parity import Case

PAGE = Path(__file__).parents[3] / "docs" / "images-families.md"
LEAST_ERROR = 1e-6
"""Smaller errors are a matter of the machine's order of additions."""

BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
HEAD = "| family | mode | diffusers' pipeline | how | error | rows per forward |\n|---|---|---|---|---:|---:|\n"


@dataclass(frozen=True)
class Row:
    """One row of the table. ``error`` is a power of ten."""

    family: str
    mode: str
    pipeline: str
    how: str
    error: float
    rows: str

    def line(self) -> str:
        """Return the row as a line of Markdown."""
        return f"| {self.family} | {self.mode} | `{self.pipeline}` | {self.how} | {self.error:.0e} | {self.rows} |\n"


def row_of(case: Case, error: float, rows: float) -> Row:
    """Return the row of a case from measured figures."""
    how = "step-batched" if case.step_batched else "request by request"
    rounded = 10.0 ** math.ceil(math.log10(max(error, LEAST_ERROR)) - 1e-6)
    return Row(case.family, case.mode, case.pipeline, how, rounded, f"{rows:.1f}")


def documented(case: Case) -> Row:
    """Return the row of a case in the page. Raises KeyError if there is none."""
    rows = {(row.family, row.mode): row for row in read()}
    return rows[case.family, case.mode]


def read() -> list[Row]:
    """Return the rows of the page."""
    inside = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    found = []
    for line in inside.strip().splitlines()[2:]:
        family, mode, pipeline, how, error, rows = (cell.strip() for cell in line.strip("|").split("|"))
        found.append(Row(family, mode, pipeline.strip("`"), how, float(error), rows))
    return found


def write(rows: Iterable[Row]) -> None:
    """Replace the rows of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    table = "".join(row.line() for row in rows)
    PAGE.write_text(f"{before}{BEGIN}\n{HEAD}{table}{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure every case and write the page."""
    from tests.models.diffusion.cases import all_cases
    from tests.models.diffusion.test_parity import Compared

    from omni_actors.models.tiny.cache import cached

    rows = []
    for case in all_cases():
        compared = Compared(case, cached(case.checkpoint))
        rows.append(row_of(case, compared.error(compared.among), compared.rows))
        print(rows[-1].line(), end="", flush=True)
    write(rows)


if __name__ == "__main__":
    main()
