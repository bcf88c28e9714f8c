"""The command ``doctor``."""

from __future__ import annotations

import json
import os

import click
from rich.console import Console

from omni_actors.entrypoints.commands.target import host_option, one_door, typed
from omni_actors.entrypoints.doctor import examine
from omni_actors.pipelines.platforms import VARIABLE
from omni_actors.telemetry import logs

PIPED_WIDTH = 160


@click.command("doctor", context_settings={"show_default": True})
@click.option(
    "--platform",
    help=f"The platform that is asked for.  [env: {VARIABLE}]  [default: what is found]",
    show_default=False,
)
@host_option("Address or name that a server would listen on (as 'serve' takes it).")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, help="Its port.")
@click.option("--uds", "unix_path", type=click.Path(), help="Unix socket that it would listen on instead of them.")
@click.option("--deep", is_flag=True, help="Open a device of each platform too, each in a process of its own.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    help="Seconds that opening devices may take.",
)
@click.option("--json", "as_json", is_flag=True, help="For a program.")
@click.pass_context
def doctor(
    context: click.Context,
    platform: str | None,
    hosts: tuple[str, ...],
    port: int,
    unix_path: str | None,
    deep: bool,
    deadline: float,
    as_json: bool,
) -> int:
    """Look at what keeps this machine from serving, and say what to do about it.

    Platforms and their devices, plugins, versions of packages, engines, transports, limits of the system. Starts no
    worker and opens no device, unless it is told to (--deep).

    \b
    omni-actors doctor
    omni-actors doctor --platform cuda --deep
    omni-actors doctor --json | jq .sections.platforms

    Exit status: 0 if what was asked for can be served (a warning is none), 1 if something stands against it, 2 for a
    wrong option.
    """
    if not deep and typed(context, "deadline"):
        raise click.UsageError("--deadline is for --deep")
    one_door(context)
    if context.obj:
        logs.configure("error")  # what choosing a platform warns of is among the findings
    report = examine(
        platform or os.environ.get(VARIABLE, "").strip() or None,
        hosts=hosts,
        port=port,
        port_asked=typed(context, "port"),
        unix_path=unix_path,
        deep_within_s=deadline if deep else None,
    )
    if as_json:
        click.echo(json.dumps(report.as_builtins(), indent=2))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=PIPED_WIDTH)).print(report.as_text())
    return report.exit_code
