"""The list of the reference pages, each with the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import author, cli, errors, keys, limits, metrics

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "author.md": author.make,
    "cli.md": cli.make,
    "deploy-keys.md": keys.make,
    "errors.md": errors.make,
    "limits.md": limits.make,
    "metrics.md": metrics.make,
}
"""File name in :data:`FOLDER` → the function that returns the page."""
