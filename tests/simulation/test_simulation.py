"""A few hundred schedules of requests and faults; ``make simulate N=10000`` runs more."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from .__main__ import search
from .run import run
from .schedule import DRAWING, FAULTS, TROUBLES, Fault, Load, Schedule

BUSY = Schedule(
    seed=7,
    deployment=4,
    loads=tuple(Load(at=30 * i, shape=i % 8, tokens=4 + i % 5, big=i % 3 == 0) for i in range(10)),
    faults=(Fault(at=60, kind="kill", stage=1), Fault(at=150, kind="kill_writing", stage=3, amount=3)),
)


@pytest.mark.slow
@pytest.mark.deadline(240)
@pytest.mark.parametrize("seed", range(4))
def test_the_invariants_hold_whatever_happens(seed: int) -> None:
    found = search(seed)
    assert found.schedule is None, (
        f"{found.violations}; its trace: python -m tests.simulation --replay '{found.schedule}'"
    )


def test_every_picture_outlives_the_workers_that_make_it() -> None:
    found = search(0, schedules=DRAWING)
    assert found.schedule is None, (
        f"{found.violations}; its trace: python -m tests.simulation --replay '{found.schedule}'"
    )
    assert found.hits["resumed:denoiser"] > 20
    assert found.hits["resumed:easel"] > 20
    # Of new requests while a stage is down, and of one whose workers are killed again and again.
    errors = {kind for kind in found.hits if kind.startswith("error:")}
    assert errors <= {"error:stage_unavailable", "error:poison"}


def test_requests_outlive_the_workers_that_they_were_in() -> None:
    report = run(BUSY)
    assert report.violations == []
    assert sum(count for kind, count in report.hits.items() if kind.startswith("resumed:")) > 0
    assert not any(kind.startswith("error:") for kind in report.hits)


def test_a_request_that_sees_workers_of_two_stages_die_is_no_poison() -> None:
    kills = (Fault(at=60, kind="kill", stage=1), Fault(at=300, kind="kill", stage=3))
    report = run(Schedule(seed=1, loads=(Load(shape=2, tokens=60),), faults=kills))
    assert report.violations == []
    assert report.hits["resumed:writer"] == report.hits["resumed:voice"] == 1


@pytest.mark.parametrize("deployment", [0, 4, 6])
def test_a_rolling_restart_of_every_stage_costs_no_request(deployment: int) -> None:
    loads = tuple(Load(at=110 * i, shape=i % 8, tokens=4 + i % 3) for i in range(12))
    report = run(
        Schedule(seed=2, deployment=deployment, loads=loads, faults=(Fault(at=50, kind="restart", amount=301),))
    )
    assert report.violations == []
    assert report.hits["restarted"] == 1
    assert not any(kind.startswith("error:") for kind in report.hits), report.hits


def test_a_schedule_is_the_same_run_each_time_and_in_each_process() -> None:
    ours = run(BUSY, tracing=True)
    again = run(BUSY, tracing=True)
    assert ours.trace == again.trace
    command = [sys.executable, "-m", "tests.simulation", "--replay", msgspec.json.encode(BUSY).decode()]
    theirs = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert theirs.stdout.splitlines()[: len(ours.trace)] == ours.trace


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_takes_effect_and_is_survived(kind: str) -> None:
    loads = tuple(Load(at=20 * i, shape=i % 7, tokens=6) for i in range(6))
    faults = tuple(Fault(at=50 + 10 * i, kind=kind, stage=i, amount=i) for i in range(4))
    report = run(Schedule(seed=3, deployment=1, loads=loads, faults=faults))
    assert report.violations == []


@pytest.mark.parametrize("trouble", [trouble for trouble in TROUBLES if trouble])
def test_a_request_in_trouble_is_in_trouble_alone(trouble: str) -> None:
    good = tuple(Load(at=10 * i, shape=3, tokens=6) for i in range(3))
    report = run(Schedule(seed=5, loads=(Load(shape=3, tokens=6, trouble=trouble, where=1, amount=2), *good)))
    assert report.violations == []
