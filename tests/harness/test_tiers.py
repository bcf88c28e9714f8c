"""The fast tier: which tests it leaves out, what it does not let pass, and the durations that a run keeps."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import tiers
from tests.harness.test_conftest import run_pytest
from tests.orchestrator import spine

CHEATS = """
import os, sys, time
import pytest

def test_plain():
    pass

def test_starts():
    os.posix_spawn("/bin/true", ["true"], {})

def test_handles_the_error():
    try:
        os.fork()
    except BaseException:
        pass

def test_takes_long():
    until = time.process_time() + 2.1
    while time.process_time() < until:
        pass

def test_names_it():
    import subprocess
    subprocess.run(["true"], check=True)

@pytest.mark.process
def test_says_so():
    os.posix_spawn("/bin/true", ["true"], {})

def test_gets_weights(demo_weights):
    pass

def test_calculates():
    import torch
"""


def test_the_fast_tier_starts_no_process_and_names_slow_tests(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CHEATS, "--fast")
    assert done.returncode == 1, done.stdout
    for name in ("test_starts", "test_handles_the_error"):
        assert f"ERROR test_inner.py::{name} - " in done.stdout
    assert {"1 failed", "3 passed", "4 deselected", "2 errors"} <= set(re.findall(r"\d+ \w+", done.stdout))
    slow = done.stdout.partition("fast tests that took more than 2 s")[2]
    assert "test_inner.py::test_takes_long" in slow.partition("\n")[2].partition("====")[0]


def test_durations_are_kept_from_run_to_run(tmp_path: Path) -> None:
    run_pytest(tmp_path, "def test_one(): pass\ndef test_two(): pass\n")
    run_pytest(tmp_path, "import time\ndef test_two(): time.sleep(0.1)\n")
    kept = json.loads((tmp_path / "results/test_durations.json").read_text())
    assert set(kept) == {"test_inner.py::test_one", "test_inner.py::test_two"}
    assert kept["test_inner.py::test_one"][0] < 0.1 <= kept["test_inner.py::test_two"][0]


# --- marks -----------------------------------------------------------------------------------------------------------


def starts() -> None:
    subprocess.run(["true"], check=True)


@contextlib.asynccontextmanager
async def through_a_context() -> AsyncIterator[None]:
    starts()
    yield


class Client:
    def __init__(self) -> None:
        self.run = functools.partial(starts)

    @property
    def answer(self) -> int:
        starts()
        return 1


async def uses_a_context() -> None:
    async with through_a_context():
        pass


def uses_a_class() -> int:
    return Client().answer


def uses_a_module() -> object:
    return spine.stub_orchestrator


@given(st.integers())
def draws(number: int) -> None:
    starts()


def runs_in_a_lambda() -> Callable[[], None]:
    return lambda: starts()


def calculates() -> None:
    import torch

    torch.zeros(1)


def adds() -> int:
    return 1 + 1


@pytest.mark.parametrize(
    ("test", "marks"),
    [
        (starts, {"process"}),
        (uses_a_context, {"process"}),
        (uses_a_class, {"process"}),
        (uses_a_module, {"process"}),
        (draws, {"process"}),
        (runs_in_a_lambda, {"process"}),
        (calculates, {"torch"}),
        (adds, set()),
    ],
)
def test_marks_are_found_through_what_a_test_names(test: object, marks: set[str]) -> None:
    assert tiers.Needs().of(test) == marks
