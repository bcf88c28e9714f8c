"""The command ``bench transport``: the cost of a payload's way from one worker to another, on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import click
import rich.box
import rich.console
import rich.table

from omni_actors.connectors.measure import IN_PLACE, SIZES, WAYS, Measured, measure, memcpy
from omni_actors.entrypoints.commands.files import OutputFile
from omni_actors.version import __version__

_WIDTH = 110


@click.command("transport", context_settings={"show_default": True, "max_content_width": 110})
@click.option(
    "--way",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    help="Way of transport to measure. Repeatable.  [default: all]",
    show_default=False,
)
@click.option("--quick", is_flag=True, help="Measure fewer rounds.")
@click.option("--json", "json_path", type=OutputFile(), help="File to write all numbers to, as JSON.")
def transport_command(ways: tuple[str, ...], quick: bool, json_path: Path | None) -> None:
    """Send payloads from one process to another and wait for each one's acknowledgement.

    The two processes do what two workers do, without a model and without a serving process. Every byte is compared in
    the first rounds of each size. Round trips are p50 / p99; GB/s counts a payload once, by the p50.
    """
    click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; other work on this machine affects the numbers")
    copies = [memcpy(nbytes, quick=quick) for nbytes in SIZES]
    results = [row for way in ways or WAYS for row in measure(way, quick=quick)]
    console = rich.console.Console()
    console.width = max(_WIDTH, console.width)
    console.print(table([*results, *copies]))
    if json_path:
        rows = [dataclasses.asdict(row) | {"bandwidth": row.bandwidth} for row in [*results, *copies]]
        json_path.write_text(json.dumps({"settings": {"version": __version__}, "results": rows}, indent=2) + "\n")


def table(rows: list[Measured]) -> rich.table.Table:
    """Return a table with a row per size and two columns per transport."""
    ways = list(dict.fromkeys(row.way for row in rows))
    made = rich.table.Table(box=rich.box.SIMPLE)
    made.add_column("payload", justify="right", no_wrap=True)
    for way in ways:
        made.add_column(f"{way}\nus", justify="right", no_wrap=True)
        if way != IN_PLACE:  # nothing of it is moved
            made.add_column("\nGB/s", justify="right", no_wrap=True)
    for nbytes in dict.fromkeys(row.nbytes for row in rows):
        cells: list[str] = []
        for way in ways:
            found = next((row for row in rows if (row.way, row.nbytes) == (way, nbytes)), None)
            cells += ["–", "–"] if found is None else [_times(found), f"{found.bandwidth / 1e9:.3g}"]
            if way == IN_PLACE:
                cells.pop()
        made.add_row(size(nbytes), *cells)
    return made


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def _times(row: Measured) -> str:
    return " / ".join(f"{value * 1e6:,.1f}" if value < 1e-3 else f"{value * 1e6:,.0f}" for value in (row.p50, row.p99))
