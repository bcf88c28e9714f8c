"""``python -m tests.chaos --seconds 600``: see the package."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table
from tests.chaos.clients import Answer, Load, Outcomes, Question, ask
from tests.chaos.faults import FAULTS
from tests.chaos.server import Census, Served, serving

CLIENTS = 12

IMAGE = ("image", "pictures")
"""Stages of a pipeline that makes pictures."""

TEXTS = (
    "Tell me about the sea.",
    "What is a robot?",
    "Why is the moon small?",
    "Two friends walk.",
    "Music in winter.",
)


@dataclass(frozen=True)
class Target:
    """A deployment, and what may be asked of it."""

    model: str
    voice: str
    settings: tuple[str, ...]
    kinds: tuple[str, ...]
    pause_s: float
    """Mean time from fault to fault: a worker should be back before most of them."""


def targets() -> dict[str, Target]:
    common = (
        "limits.restart_delay_s=0.05",
        "limits.restart_delay_max_s=1",
        "limits.max_resumes=20",
        # Who is stopped while it loads, or in a step, is found within a client's patience.
        "stages.media.start_timeout_s=20",
        "stages.media.step_budget_s=20",
    )
    stub = ("writer", "speaker")
    found = {
        "stub-voice": Target(
            "stub-voice",
            "tone",
            (
                *common,
                *(f"stages.{stage}.replicas=2" for stage in stub),
                *(f"stages.{stage}.options.step_s=0.01" for stage in stub),
                *(f"stages.{stage}.{budget}_budget_s=2" for stage in stub for budget in ("step", "compile")),
                *(f"stages.{stage}.start_timeout_s=15" for stage in stub),
                *(f"stages.{stage}.limits.arena_bytes=1048576" for stage in stub),
            ),
            ("chat", "spoken", "speech"),
            1.0,
        )
    }
    omni = ("encoder", "thinker", "talker", "code2wav")
    found["qwen3-omni"] = Target(
        "qwen3-omni",
        "ethan",
        (
            *common,
            *(f"stages.{stage}.dtype=float32" for stage in omni),
            *(f"stages.{stage}.threads=1" for stage in omni),
            *(f"stages.{stage}.{budget}_budget_s=20" for stage in omni for budget in ("step", "compile")),
            *(f"stages.{stage}.start_timeout_s=60" for stage in omni),
            "stages.thinker.replicas=2",
            "stages.talker.sampling.temperature=0",
        ),
        ("chat", "spoken"),
        6.0,
    )
    found["stub-image"] = Target(
        "stub-image",
        "",
        (
            *common,
            "stages.image.replicas=2",
            "stages.image.options.step_s=0.01",
            *(f"stages.{stage}.{budget}_budget_s=2" for stage in IMAGE for budget in ("step", "compile")),
            *(f"stages.{stage}.start_timeout_s=15" for stage in IMAGE),
        ),
        ("picture",),
        1.0,
    )
    found["sd3"] = Target(
        "sd3",
        "",
        (
            *common,
            "stages.image.dtype=float32",
            "stages.image.threads=1",
            "stages.image.replicas=2",
            *(f"stages.{stage}.{budget}_budget_s=20" for stage in IMAGE for budget in ("step", "compile")),
            *(f"stages.{stage}.start_timeout_s=60" for stage in IMAGE),
        ),
        ("picture",),
        6.0,
    )
    return found


async def references(served: Served, target: Target, model: str) -> dict[Question, Answer]:
    """What undisturbed answers are."""
    questions = [Question(kind, text, words) for kind in target.kinds for text in TEXTS for words in (5, 40)]
    found = {}
    for question in questions:
        path, body = question.body(model, target.voice, stream=False)
        found[question] = await ask(served, path, body)
    return found


async def disturb(served: Served, chance: random.Random, seconds: float, pause_s: float, done: Counter[str]) -> None:
    names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
    end = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:
        while trio.current_time() < end:
            name = chance.choices(names, weights)[0]
            done[name] += 1
            nursery.start_soon(FAULTS[name][0], served, chance)
            await trio.sleep(chance.expovariate(1 / pause_s))
        nursery.cancel_scope.deadline = trio.current_time() + 60


async def leftovers(served: Served, before: Census) -> list[str]:
    """What should not be there once all is quiet again."""
    with trio.move_on_after(30):
        while await served.gauges():
            await trio.sleep(0.1)
    left = [f"gauge {name} is {value:g}" for name, value in (await served.gauges()).items()]
    after = served.census()
    if after.processes != before.processes:
        left.append(f"{after.processes} processes, not {before.processes}")
    if after.descriptors > before.descriptors + 20:  # pools of the client's connections
        left.append(f"{after.descriptors} descriptors, not {before.descriptors}")
    if after.memfds > 2 * before.memfds + 20:
        left.append(f"{after.memfds} maps of shared memory, not {before.memfds}")
    if after.rss_mb > before.rss_mb + 150:
        left.append(f"{after.rss_mb:.0f} MB in the server, not {before.rss_mb:.0f}")
    if new := after.shm_files - before.shm_files:
        left.append(f"files in /dev/shm: {sorted(new)}")
    return left


async def run(name: str, seconds: float, seed: int, log: Path) -> tuple[Counter[str], Outcomes, list[str]]:
    """Faults done, what became of the requests, and what is wrong in the end."""
    target = targets()[name]
    chance = random.Random(seed)
    model = target.model
    if not name.startswith("stub-"):
        from omni_actors.models.tiny.cache import cached

        model = str(cached(name))
    wrong: list[str] = []
    done: Counter[str] = Counter()
    async with serving(model, target.settings, log) as served:
        served_name = (await served.get("/v1/models")).json()["data"][0]["id"]
        expected = await references(served, target, served_name)
        before = served.census()
        load = Load(served, served_name, target.voice, expected, seed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, CLIENTS)
            await disturb(served, chance, seconds, target.pause_s, done)
            load.stop()
        if not await served.wait_healthy(90):
            wrong.append(f"not healthy again: {(await served.get('/health')).text}")
        wrong += await leftovers(served, before)
        for question, answer in (await references(served, target, served_name)).items():
            if not answer.same(expected[question]):
                wrong.append(f"another answer afterwards: {question}")
    return done, load.outcomes, wrong


def show(name: str, seed: int, done: Mapping[str, int], outcomes: Outcomes, wrong: list[str]) -> bool:
    console = Console(width=120)
    faults = Table("fault", "times", title=f"{name}, seed {seed}: {sum(done.values())} faults")
    for fault, times in sorted(done.items(), key=lambda it: -it[1]):
        faults.add_row(fault, str(times))
    console.print(faults)
    ends = Table("requests that", "", title=f"{sum(outcomes.counts.values())} requests")
    for end, count in sorted(outcomes.counts.items(), key=lambda it: -it[1]):
        ends.add_row(end, str(count))
    for label, list_ in (("WRONG", outcomes.wrong), ("HUNG", outcomes.hung), ("UNTYPED", outcomes.untyped)):
        ends.add_row(label, str(len(list_)))
    console.print(ends)
    bad = [*outcomes.wrong, *outcomes.hung, *outcomes.untyped, *wrong]
    for line in bad[:40]:
        console.print(f"  {line}", markup=False)
    console.print("all well" if not bad else f"{len(bad)} things are wrong", style="green" if not bad else "red")
    return not bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--model", choices=list(targets()), help="one deployment; without it each gets its share")
    parser.add_argument("--log", type=Path, help="the servers' log; /dev/full is a disk that is full")
    options = parser.parse_args()
    names = [options.model] if options.model else list(targets())
    good = True
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "server.log")
        for name in names:
            result = trio.run(run, name, options.seconds / len(names), options.seed, log)
            good &= show(name, options.seed, *result)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
