"""``python -m tests.simulation -n 1000`` runs so many schedules on all cores; what fails is shrunk and can be replayed.

A seed stands for :data:`BATCH` schedules that Hypothesis draws from it. ``--seed S`` runs those of one seed (and of the
following ones, with ``-n``); ``--replay '…'`` one schedule, as a failure prints it, and shows its trace.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from .run import run
from .schedule import SCHEDULES, Schedule

BATCH = 50
"""Schedules of one seed."""

SHRINK_S = 20.0
"""Seconds for making a schedule smaller that violates."""


@dataclass(slots=True)
class Found:
    """What the schedules of one seed came to. ``schedule`` is the shrunk one that violates, as JSON."""

    seed: int
    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    schedule: str | None = None
    violations: list[str] = field(default_factory=list)


class Violated(Exception):
    """A run in which an invariant did not hold."""


def search(
    seed: int, count: int = BATCH, schedules: st.SearchStrategy[Schedule] = SCHEDULES, *, shrink: bool = True
) -> Found:
    """Run the schedules that Hypothesis draws from a seed, until one violates; that is shrunk."""
    found = Found(seed)
    limit = math.inf
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(schedules)
    def all_hold(schedule: Schedule) -> None:
        nonlocal limit
        text = msgspec.json.encode(schedule).decode()
        if found.schedule is not None and time.monotonic() > limit:  # enough shrunk
            if text == found.schedule:
                raise Violated
            return
        report = run(schedule)
        found.runs += 1
        found.hits.update(report.hits)
        if report.violations:
            if found.schedule is None:
                limit = time.monotonic() + SHRINK_S
            found.schedule = text
            found.violations = report.violations
            raise Violated

    try:
        all_hold()
    except Violated:
        pass
    except FlakyFailure:
        found.violations.append("(not every time)")
    return found


def replay(text: str) -> int:
    """Run one schedule and show what happened."""
    report = run(msgspec.json.decode(text, type=Schedule), tracing=True)
    print("\n".join(report.trace))
    for violation in report.violations:
        print(f"VIOLATION: {violation}")
    print(f"{report.virtual_s:.2f} virtual seconds; hits: {report.hits}")
    return bool(report.violations)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, default=1000, help="how many schedules (default 1000)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: another one each time)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--replay", metavar="JSON", help="run this schedule and show its trace")
    parser.add_argument("--no-shrink", action="store_true", help="show what fails as it is")
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(arguments.replay)
    first = time.time_ns() % 1_000_000 if arguments.seed is None else arguments.seed
    seeds = range(first, first + max(1, -(-arguments.n // BATCH)))
    begun = time.perf_counter()
    total = Found(first)
    failed = 0
    with ProcessPoolExecutor(arguments.jobs, initializer=gc.freeze) as pool:
        for found in pool.map(search, seeds, [BATCH] * len(seeds)):
            total.runs += found.runs
            total.hits += found.hits
            if found.schedule is not None:
                failed += 1
                print(f"\nSeed {found.seed} violates:")
                for violation in found.violations:
                    print(f"  {violation}")
                print(f"  again: make simulate N={BATCH} SEED={found.seed}")
                print(f"  its trace: python -m tests.simulation --replay '{found.schedule}'", flush=True)
    wall = time.perf_counter() - begun
    print(
        f"\n{total.runs} schedules in {wall:.0f} s ({1000 * wall / max(1, total.runs):.1f} ms each), seeds from {first}"
    )
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(total.hits.items()))
    print(f"{len(total.hits)} kinds of fault took effect: {kinds}")
    print(f"{failed} seeds with a violation")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
