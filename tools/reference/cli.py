"""The page of the command line, made of the commands' own help."""

from __future__ import annotations

from collections.abc import Iterator

import click
from tools.reference.markdown import documented, page

from omni_actors.entrypoints.bench.transport import transport_command
from omni_actors.entrypoints.cli import cli


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: A command or an option has no help.
    """
    parts = [part for name, command in _commands(cli, "omni-actors") for part in _section(name, command)]
    return page(
        "Command line",
        "`omni-actors` and `python -m omni_actors` are the same program. Each command shows this help with `--help`.",
        *parts,
    )


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and the commands below it, each with its whole name."""
    yield name, command
    if name == "omni-actors bench":  # which takes this word itself, and is no group
        yield f"{name} transport", transport_command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None, below
            yield from _commands(found, f"{name} {below}")


def _section(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"## {name}"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield from _help(name, command.help)
    options = []
    for it in command.get_params(context):
        record = it.get_help_record(context)
        if record is not None and isinstance(it, click.Option) and "--help" not in it.opts:
            documented(f"{name} {record[0]}", it.help)
            options.append(f"- `{record[0]}`: {record[1]}")
    if options:
        yield "\n".join(options)


def _help(name: str, text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a command's help; a paragraph that click does not wrap is a block of commands."""
    paragraphs = (text or "").split("\n\n")
    documented(name, paragraphs[0])
    for paragraph in paragraphs:
        lines = [line.strip() for line in paragraph.splitlines() if line.strip() not in ("", "\b")]
        if "\b" in paragraph:
            commands = not any("   " in line for line in lines)  # a table has columns
            yield "\n".join([f"```{'sh' if commands else 'text'}", *lines, "```"])
        elif lines:
            yield " ".join(lines)
