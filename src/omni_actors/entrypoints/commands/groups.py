"""A group of commands that suggests the nearest command for an unknown one."""

from __future__ import annotations

from typing import Any

import click


class Group(click.Group):
    """Refuses an unknown command with the nearest known one, in any version of click."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not context.resilient_parsing and not name.startswith("-") and self.get_command(context, name) is None:
            from omni_actors.pipelines.nearest import nearest

            raise click.UsageError(f"No such command '{name}'; {nearest(name, self.list_commands(context))}", context)
        return super().resolve_command(context, args)


def group(name: str, **settings: Any) -> Any:
    """Like :func:`click.group`, for a :class:`Group`."""
    return click.group(name, cls=Group, **settings)
