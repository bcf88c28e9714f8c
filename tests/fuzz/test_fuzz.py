"""A moment of every target, the same inputs each time; and the fuzzer's own promises."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.fuzz.search import blind
from tests.fuzz.target import Target, plain
from tests.fuzz.targets import TARGETS

SECONDS = 1.0

INPUTS = 1000
"""At most, however quick the machine: a test is no search, and finds the same everywhere."""


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("name", TARGETS)
def test_a_moment_of(name: str) -> None:
    target = TARGETS[name]
    findings: list[str] = []

    def found(data: bytes, error: Exception) -> None:
        findings.append(f"{error!r:.300}\n  python -m tests.fuzz {name} --replay {data.hex()}")

    with target.opened() as one:
        runs = blind(target, one, SECONDS, 0, found, INPUTS)
    assert not findings, f"{len(findings)} of {runs} inputs, such as\n{findings[0]}"
    assert runs >= min(INPUTS, len(target.seeds()))


def test_every_seed_is_run_on_a_machine_without_time() -> None:
    seen: list[bytes] = []
    seeds = [bytes([number]) for number in range(9)]
    target = Target("seeds", "nothing", plain(seen.append), lambda: list(seeds))
    with target.opened() as one:
        assert blind(target, one, 0.0, 0, lambda data, error: None) == 9
    assert sorted(seen) == seeds


def _picky(data: bytes) -> None:
    if b"mad" in data and data.count(b"\xff") > 1:
        raise ValueError


def test_the_blind_search_finds_what_is_there_and_the_same_for_a_seed() -> None:
    target = Target("picky", "nothing", plain(_picky), lambda: [b"made", b"\xff up"], (b"\xff",))
    inputs: list[list[bytes]] = []
    for _ in range(2):
        inputs.append([])
        with target.opened() as one:
            assert blind(target, one, 0.3, 7, lambda data, error: inputs[-1].append(data)) > 100
        assert inputs[-1]
    few = min(map(len, inputs))
    assert inputs[0][:few] == inputs[1][:few]


@pytest.mark.deadline(90)
def test_the_command_runs_a_target_and_replays_an_input() -> None:
    def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.fuzz", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=80, check=False)

    done = fuzz("handshake", "--seconds", "0.3", "--engine", "blind")
    assert (done.returncode, "0 finding(s)" in done.stdout) == (0, True), done.stdout + done.stderr
    assert fuzz("handshake", "--replay", "00ff").returncode == 0
