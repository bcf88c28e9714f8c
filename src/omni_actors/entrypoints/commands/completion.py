"""The command ``completion``, and completion of names besides commands and options."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_OMNI_ACTORS_COMPLETE"
"""Environment variable by which a shell asks the program for completions. (Click derives the name from
the program's.)"""

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands, options and names of pipelines.

    \b
    echo 'eval "$(omni-actors completion bash)"' >> ~/.bashrc
    echo 'eval "$(omni-actors completion zsh)"' >> ~/.zshrc
    omni-actors completion fish > ~/.config/fish/completions/omni-actors.fish

    Shells that are started afterwards use it.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "omni-actors", VARIABLE)
    click.echo(script.source_template % script.source_vars())


def complete_model(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the names of pipelines, and folders if no name matches."""
    from omni_actors.pipelines.registry import Registry

    folders = CompletionItem(begun, type="dir")
    return [
        folders,
        *(CompletionItem(name) for name in sorted(Registry.installed().offered()) if name.startswith(begun)),
    ]
