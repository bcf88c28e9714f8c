"""The tests' own machinery: async tests, virtual time, hypothesis, deadlines, and the check for left processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

CONFTEST = Path(__file__).parents[1] / "conftest.py"
INI = Path(__file__).parents[2] / "pyproject.toml"


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-c", str(INI), "--rootdir", str(folder), "-p", "no:cacheprovider", "."]
    command += options
    environment = {**os.environ, "PYTHONPATH": str(INI.parent)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


async def test_async_function_runs_under_trio() -> None:
    assert trio.current_time() > 0


async def test_autojump_clock_skips_waiting(autojump_clock: trio.testing.MockClock) -> None:
    real, virtual = time.monotonic(), trio.current_time()
    await trio.sleep(3600)
    assert trio.current_time() - virtual == pytest.approx(3600)
    assert time.monotonic() - real < 10


@settings(max_examples=5, deadline=None)
@given(numbers=st.lists(st.integers(), max_size=5))
async def test_hypothesis_drives_async_tests(numbers: list[int]) -> None:
    send, receive = trio.open_memory_channel[int](5)
    for number in numbers:
        send.send_nowait(number)
    send.close()
    assert [number async for number in receive] == numbers


def test_a_failing_hypothesis_example_fails_the_test(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\n"
        "async def test_small(n):\n    assert n < 100\n",
    )
    assert done.returncode == 1, done.stdout
    assert "n=100" in done.stdout


def test_deadline_ends_a_hanging_async_test(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "import pytest, trio\n@pytest.mark.deadline(0.2)\nasync def test_hang():\n    await trio.sleep_forever()\n",
    )
    assert done.returncode == 1, done.stdout
    assert "did not finish within 0.2 s" in done.stdout


def test_deadline_ends_a_hanging_sync_test(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "import pytest, threading\n@pytest.mark.deadline(0.2)\ndef test_hang():\n    threading.Event().wait()\n",
    )
    assert done.returncode == 1, done.stdout
    assert "still running after 0.2 s" in done.stdout


def test_a_left_child_fails_its_test_and_is_killed(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "import subprocess\nheld = []\n"
        "def test_leak():\n    held.append(subprocess.Popen(['sleep', '600']))\n"
        "def test_after():\n    assert held[0].wait(5) == -9\n",
    )
    assert done.returncode == 1, done.stdout
    assert "processes are left of this test" in done.stdout
    assert "sleep 600" in done.stdout
    assert "2 passed, 1 error" in done.stdout


def test_a_left_orphan_grandchild_fails_its_test(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "import subprocess\ndef test_leak():\n    subprocess.run(['sh', '-c', 'sleep 600 >/dev/null 2>&1 &'])\n",
    )
    assert done.returncode == 1, done.stdout
    assert "sleep 600" in done.stdout


def test_a_child_that_is_waited_for_is_no_leak(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "import subprocess\ndef test_clean():\n    subprocess.run(['true'], check=True)\n")
    assert done.returncode == 0, done.stdout


def test_deadline_ends_a_hanging_hypothesis_test_without_shrinking(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "import pytest, time\nfrom hypothesis import given, strategies as st\n"
        "@pytest.mark.deadline(0.3)\n@given(st.integers())\ndef test_hang(n):\n    time.sleep(20)\n",
    )
    assert done.returncode == 1, done.stdout
    assert "still running after 0.3 s" in done.stdout
