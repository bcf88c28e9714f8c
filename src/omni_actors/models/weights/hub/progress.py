"""How far downloads are, for people: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from omni_actors.models.weights.disk import as_text
from omni_actors.models.weights.hub.download import Reporter

LINE_S = 15.0
"""Seconds between two lines about files that are still coming."""


class Lines:
    """A line when a download begins, one when a file is there, and one about the whole now and then."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._name, self._size = "", 0
        self._done: dict[str, int] = {}
        self._said = time.monotonic()

    def start(self, name: str, files: int, size: int) -> None:
        self._name, self._size, self._done, self._said = name, size, {}, time.monotonic()
        self._say(f"{name}: fetching {as_text(size)} in {files} file{'s' * (files != 1)}")

    def file(self, name: str, done: int, total: int) -> None:
        self._done[name] = done
        if done == total:
            self._say(f"{self._name}: {name} ({as_text(total)}) is here")
        elif time.monotonic() - self._said > LINE_S:
            self._said = time.monotonic()
            self._say(f"{self._name}: {as_text(sum(self._done.values()))} of {as_text(self._size)}")

    def say(self, text: str) -> None:
        self._say(text)


class Bars:
    """A bar for each file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def start(self, name: str, files: int, size: int) -> None:
        self._bars = {}
        self._progress.console.print(f"{name}: fetching {as_text(size)} in {files} files", highlight=False)

    def file(self, name: str, done: int, total: int) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._bars[name], completed=done)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, soft_wrap=True)


@contextmanager
def download_reporter(say: Callable[[str], None], console: Console | None = None) -> Iterator[Reporter]:
    """Bars on standard error if that is a terminal; else lines, each by ``say``."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Lines(say)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)
