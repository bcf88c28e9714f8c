"""The display of progress while the stages load."""

from __future__ import annotations

import logging

import trio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from omni_actors.orchestrator import Orchestrator
from omni_actors.pipelines.plan import Plan

REFRESH_S = 0.1

log = logging.getLogger("omni_actors.serve")


async def show_loading(orchestrator: Orchestrator, plan: Plan, console: Console | None = None) -> None:
    """Wait until every stage is ready, with a line per stage on a terminal, or a log line per change elsewhere.

    Raises :class:`OmniError`, naming the stage, if a stage cannot start.
    """
    console = console or Console(stderr=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_draw if console.is_terminal else _log, orchestrator, plan, console)
        try:
            await orchestrator.wait_ready()
        finally:
            nursery.cancel_scope.cancel()


async def _draw(orchestrator: Orchestrator, plan: Plan, console: Console) -> None:
    progress = Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.fields[stage]:12}"),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,  # it would use a thread; this task refreshes
        transient=True,
    )
    lines = {stage.name: progress.add_task("", stage=stage.name, total=1) for stage in plan.stages}
    with progress:
        while True:
            for name, health in orchestrator.health().items():
                loaded = health.live == health.wanted
                progress.update(lines[name], description=health.progress, completed=int(loaded))
            progress.refresh()
            await trio.sleep(REFRESH_S)


async def _log(orchestrator: Orchestrator, plan: Plan, console: Console) -> None:
    shown: dict[str, str] = {}
    while True:
        for name, health in orchestrator.health().items():
            if health.progress != shown.get(name):
                shown[name] = health.progress
                log.info("%s: %s", name, health.progress)
        await orchestrator.changed.park()
