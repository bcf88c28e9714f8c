"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class OutputFile(click.Path):
    """A file that can be written, as far as that can be checked before the work that fills the file."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if not path.parent.is_dir():
            self.fail(f"there is no folder '{path.parent}'.", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
            self.fail(f"the folder '{path.parent}' is not writable.", param, ctx)
        return path
