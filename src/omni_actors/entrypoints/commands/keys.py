"""Checks of the keys that commands take."""

from __future__ import annotations

import os
from typing import TypeVar

import click
from click.core import ParameterSource

from omni_actors.entrypoints.keys import check_key

T = TypeVar("T", tuple[str, ...], str | None)


def checked_keys(context: click.Context, option: click.Parameter, value: T) -> T:
    """Return the keys (or the key) of an option.

    Raises :class:`click.UsageError` for an empty or blank key, on the command line or in the option's variable: click
    treats an empty variable as unset, so a server whose operator meant to set a key would serve without one.
    """
    assert option.name is not None
    assert isinstance(option.envvar, str)
    typed = context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    name = option.opts[0] if typed else option.envvar
    given = (value,) if isinstance(value, str) else value or ()
    if not typed and not "".join(given).strip() and os.environ.get(option.envvar) is not None:
        raise click.UsageError(f"{name} is set but empty: give it a key, or unset it")
    for key in given:
        try:
            check_key(key, name)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    return value
