"""The progress bar of pictures that are made step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from omni_actors.protocol.request import Request, StepProgress


class StepsBar:
    """A bar of the denoising steps of all pictures of a request."""

    def __init__(self, progress: Progress, pictures: int) -> None:
        self._progress = progress
        self._pictures = pictures
        self._steps: dict[int, int] = {}
        self._bar = progress.add_task("steps", total=None)

    def done(self, event: StepProgress) -> None:
        self._steps[event.index] = event.step
        self._progress.update(self._bar, completed=sum(self._steps.values()), total=event.steps * self._pictures)


@contextmanager
def steps_bar(request: Request, show: bool) -> Iterator[StepsBar]:
    """Show a bar on standard error while pictures are made, if that is a terminal."""
    console = Console(stderr=True)
    shown = show and console.is_terminal and "image" in request.outputs
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        image = request.params.get("image")
        yield StepsBar(progress, image.n if image is not None else 1)
