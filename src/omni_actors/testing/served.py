"""A test of a pipeline in real workers that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import trio

from omni_actors.orchestrator import Orchestrator, open_orchestrator
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta
from omni_actors.testing.outcome import Outcome
from omni_actors.testing.sample import Sample

START_S = 120.0
ANSWER_S = 60.0


def deaths(plan: Plan, samples: Sequence[Sample], most: int, *, restart_delay_s: float = 0.05) -> list[str]:
    """Serve each sample whole, and then once for each stage and moment at which the stage's worker is killed.

    Args:
        plan: The deployment.
        samples: The requests.
        most: The most moments of each answer, spread evenly over its events.
        restart_delay_s: Seconds after which a killed worker is started again.

    Returns:
        A sentence for each difference to the output without a death.
    """
    limits = replace(plan.limits, restart_delay_s=restart_delay_s, restart_delay_max_s=4 * restart_delay_s)
    quick = replace(plan, limits=limits)
    return trio.run(_deaths, quick, list(samples), most)


async def _deaths(plan: Plan, samples: list[Sample], most: int) -> list[str]:
    found: list[str] = []
    killed: set[int] = set()
    async with open_orchestrator(plan) as orchestrator:
        with trio.fail_after(START_S):
            await orchestrator.wait_ready()
        for number, sample in enumerate(samples):
            await wait_restarted(orchestrator, killed)
            whole, events = await _ask(orchestrator, sample, None, -1, killed)
            if whole.error is not None:
                found.append(f"sample {number} is not served: {whole.error}")
                continue
            again, _ = await _ask(orchestrator, sample, None, -1, killed)
            if difference := whole.difference(again):
                found.append(f"sample {number}, served twice: {difference}")
            places = sorted({round(i * max(0, events - 1) / max(1, most - 1)) for i in range(min(most, events))})
            for stage in orchestrator.pools:
                for place in places:
                    await wait_restarted(orchestrator, killed)
                    after, _ = await _ask(orchestrator, sample, stage, place, killed)
                    told = f"sample {number}, the worker of stage '{stage}' killed after {place + 1} of {events} events"
                    if after.error is not None and _may_end(plan, after):
                        continue
                    if difference := whole.difference(after):
                        found.append(f"{told}: {difference}")
    return found


async def wait_restarted(orchestrator: Orchestrator, killed: set[int]) -> None:
    """Wait until every stage has a live replica and no replica is a killed worker: the orchestrator may not have
    noticed a death yet when an answer undisturbed by the death is complete."""
    with trio.fail_after(START_S):
        while not orchestrator.ready or any(
            replica.pid in killed for pool in orchestrator.pools.values() for replica in pool.replicas
        ):
            await orchestrator.changed.park()


def _may_end(plan: Plan, after: Outcome) -> bool:
    """Return whether the pipeline declares that its output cannot be continued."""
    assert after.error is not None
    none = any(stage.declaration.recovery == "none" for stage in plan.stages)
    return none and after.error.status == 503


async def _ask(
    orchestrator: Orchestrator, sample: Sample, stage: str | None, place: int, killed: set[int]
) -> tuple[Outcome, int]:
    """Ask for a sample as a client does, and kill the worker of ``stage`` after event ``place``.

    Returns the client's output and the number of events. The killed process's id is added to ``killed``.
    """
    outcome, events = Outcome(), 0
    try:
        with trio.fail_after(ANSWER_S):
            async with orchestrator.open(sample.request()) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        outcome.text[event.index] = outcome.text.get(event.index, "") + event.text
                    elif isinstance(event, MediaChunk):
                        outcome.sound += event.data
                    elif isinstance(event, Completed):
                        continue
                    events += 1
                    if stage is not None and events == place + 1:
                        (replica, *_) = orchestrator.pools[stage].replicas
                        if replica.pid is not None:
                            killed.add(replica.pid)
                            os.kill(replica.pid, signal.SIGKILL)
    except OmniError as error:
        outcome.error = error.info
    return outcome, events
