"""The command line: ``omni-actors`` and ``python -m omni_actors``.

Commands are imported when they are called, so that ``--help`` answers at once. Neither this module nor a command
imports torch: models live in worker processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from omni_actors.entrypoints.commands.groups import Group
from omni_actors.protocol.errors import OmniError
from omni_actors.telemetry.opt_out import OPT_OUT
from omni_actors.version import __version__

EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is not imported yet: its address, and its line in the overview."""

    target: str
    summary: str


COMMANDS: Mapping[str, Lazy] = {
    "serve": Lazy("omni_actors.entrypoints.commands.serve:serve", "Serve a model over HTTP (OpenAI's API)."),
    "run": Lazy("omni_actors.entrypoints.commands.run:run", "Run one request and print or write what comes back."),
    "replicas": Lazy(
        "omni_actors.entrypoints.commands.replicas:replicas_group",
        "List a server's workers, drain them and replace them.",
    ),
    "explain": Lazy("omni_actors.entrypoints.commands.explain:explain", "Show what would run, and why."),
    "doctor": Lazy("omni_actors.entrypoints.commands.doctor:doctor", "Check whether this machine can serve."),
    "models": Lazy("omni_actors.models.weights.cli:models_group", "Fetch, check, list and remove weights."),
    "bench": Lazy("omni_actors.entrypoints.bench:bench_command", "Load a server and measure latency and throughput."),
    "completion": Lazy(
        "omni_actors.entrypoints.commands.completion:completion", "Print a script for completion in a shell."
    ),
}


class LazyGroup(Group):
    """Sub-commands by dotted name, in the order in which a newcomer needs them."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="omni-actors")
def cli() -> None:
    """Serve models that are made of several parts, each part a supervised worker process.

    \b
    omni-actors serve                        the built-in demo on http://127.0.0.1:8000
    omni-actors serve ./my-model             any causal language model in a folder
    omni-actors run "Why is the sky blue?"   one answer, without a server
    omni-actors explain                      every setting, and its origin

    Each command has a --help of its own.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. An error that an operator can fix is one line on stderr, never a traceback."""
    try:
        _run(arguments)
    finally:
        _give_up_full_streams()


def _give_up_full_streams() -> None:
    """Drop output that could not be written (a full disk, a closed pipe). Python would try it again at exit, and change
    the exit status."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed when Python started
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _run(arguments: list[str] | None) -> None:
    if arguments is None:  # this process is the command's own, and so are its children
        os.environ.update(OPT_OUT)
    try:
        # A command's context.obj: whether this process is its own, or calls it.
        code: Any = cli.main(arguments, prog_name="omni-actors", standalone_mode=False, obj=arguments is None)
    except click.exceptions.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OmniError as error:
        click.echo(f"Error: {error.info.message}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BaseExceptionGroup as group:
        _exit_for(group)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_for(group: BaseExceptionGroup[BaseException]) -> None:
    """Exit for a group of exceptions as for a single one, unless the group holds a bug, which is shown in full."""
    expected, bugs = group.split((OmniError, KeyboardInterrupt, click.exceptions.Abort))
    if bugs is not None or expected is None:
        raise group
    messages = dict.fromkeys(error.info.message for error in leaves(expected) if isinstance(error, OmniError))
    for message in messages:
        click.echo(f"Error: {message}", err=True)
    sys.exit(1 if messages else EXIT_INTERRUPTED)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions in a group, at any depth."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
