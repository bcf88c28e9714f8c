"""The command ``doctor``."""

from __future__ import annotations

import json
import os

import click
from rich.console import Console

from omni_actors.entrypoints.commands.target import check_one_address, host_option, typed
from omni_actors.entrypoints.doctor import examine
from omni_actors.pipelines.planning.platforms import VARIABLE
from omni_actors.telemetry import logs

PIPED_WIDTH = 160


@click.command("doctor", context_settings={"show_default": True})
@click.option(
    "--platform",
    help=f"Platform to check for.  [env: {VARIABLE}]  [default: the platform that is found]",
    show_default=False,
)
@host_option("Address or name that the server would listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, help="Port that the server would listen on.")
@click.option(
    "--uds",
    "unix_path",
    type=click.Path(),
    help="Unix socket that the server would listen on, instead of host and port.",
)
@click.option("--deep", is_flag=True, help="Also open a device of each platform, each in a process of its own.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    help="Seconds that opening devices may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
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
    """Check whether this machine can serve, and say how to mend what is wrong.

    The report covers platforms and their devices, plug-ins, versions of packages, engines, transports and limits of the
    system. No worker is started, and no device is opened without --deep.

    \b
    omni-actors doctor
    omni-actors doctor --platform cuda --deep
    omni-actors doctor --json | jq .sections.platforms

    Exit status: 0 if the machine can serve (warnings do not matter), 1 if there is a problem, 2 for a wrong option.
    """
    if not deep and typed(context, "deadline"):
        raise click.UsageError("--deadline needs --deep")
    check_one_address(context)
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
