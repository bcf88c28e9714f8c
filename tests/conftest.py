"""How every test here runs.

* A plain ``async def test_…`` runs under :func:`trio.run`, also with hypothesis' ``@given`` (one run per example).
* The fixture ``autojump_clock`` gives the test virtual time: only for tests without real I/O and child processes.
* A test body has 30 s of real time; ``@pytest.mark.deadline(120)`` gives it another bound.
* After each test no process that it started is left, nor a descendant of one.
* ``demo_weights`` is the folder of the demo's weights, fetched once if they are missing.
* ``tiny_model(family)`` is the folder of a tiny checkpoint, built once into the cache.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import select
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing
from tests import durations, tiers
from tests.shared import Once, once

with contextlib.suppress(ImportError):  # the environment of vLLM's tests has no hypothesis
    import hypothesis  # noqa: F401  # before pytest_collection_finish: it looks for the owners of trio's random numbers

DEFAULT_DEADLINE_S = 30.0
STUCK_GRACE_S = 10.0
"""How long past its deadline a test may take to unwind before the alarm interrupts it wherever it is."""

EXIT_GRACE_S = 2.0
"""Processes that are already ending when a test returns have so long to be gone."""

RUN_MARK = "OMNI_ACTORS_TEST_RUN"
"""Environment variable by which the descendants of this run are found, whoever their parent is now."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that need no process, no torch and no weights")
    parser.addoption("--every-death", action="store_true", help="kill at every place of tests/chaos, not at a sample")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[RUN_MARK] = uuid.uuid4().hex
    # Before anything imports torch: beside worker processes, a second thread spins for longer than it helps.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # No test fetches from a hub beyond this machine; those with one of their own say so.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Nothing that collection makes is garbage: modules, torch's among them, and items.
    gc.disable()
    durations.register(config)
    tiers.register(config)


def pytest_collection_finish() -> None:
    """Leave what collection made out of every later collection of garbage, which would walk over it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


# --- async tests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Virtual time for this test: when every task sleeps, the clock jumps to the next deadline."""
    return trio.testing.MockClock(autojump_threshold=0)


def _deadline(item: pytest.Item) -> float:
    mark = item.get_closest_marker("deadline")
    return DEFAULT_DEADLINE_S if mark is None else float(mark.args[0])


def _run(
    test: Callable[..., Any], deadline: float, clock: trio.testing.MockClock | None, kwargs: dict[str, Any]
) -> None:
    async def main() -> None:
        if clock is not None:  # virtual seconds say nothing about a hang: the alarm guards this test
            await test(**kwargs)
            return
        with trio.move_on_after(deadline) as scope:
            await test(**kwargs)
        if scope.cancelled_caught:
            pytest.fail(f"the test did not finish within {deadline:g} s", pytrace=False)

    trio.run(main, clock=clock, strict_exception_groups=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    deadline = _deadline(pyfuncitem)
    given = getattr(test, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        inner = given.inner_test

        @functools.wraps(inner)
        def one_example(*args: Any, **kwargs: Any) -> None:
            _run(functools.partial(inner, *args), deadline, None, kwargs)

        given.inner_test = one_example
        return None  # pytest goes on and calls what @given made, which calls one_example
    if not inspect.iscoroutinefunction(test):
        return None
    kwargs: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run(test, deadline, kwargs.get("autojump_clock"), kwargs)
    return True


class StuckError(BaseException):
    """No ``Exception``: hypothesis would take it for a failure of one example, and go on to shrink that without any
    bound on its time."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Interrupts a test that no cancellation reaches: a sync one, one in virtual time, one stuck in a call."""
    deadline = _deadline(item)
    extra = 0.0 if not inspect.iscoroutinefunction(getattr(item, "obj", None)) else STUCK_GRACE_S

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise StuckError(f"the test was still running after {deadline + extra:g} s")

    if threading.current_thread() is not threading.main_thread():
        return (yield)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, deadline + extra)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- nothing is left behind ------------------------------------------------------------------------------------------


def _processes_of_this_run() -> dict[int, int]:
    """pid → parent's pid of every live process (zombies too) that inherited this run's mark, this one excepted."""
    needle = f"{RUN_MARK}={os.environ[RUN_MARK]}".encode()
    found: dict[int, int] = {}
    children = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            # A zombie's environment is empty: it is ours if it is our child.
            if name in children or needle in Path(f"/proc/{name}/environ").read_bytes():
                stat = Path(f"/proc/{name}/stat").read_text()
                found[int(name)] = int(stat.rpartition(")")[2].split()[1])
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def _new_processes(before: dict[int, int]) -> list[int]:
    """Processes that are there now, were not there before, and do not descend from one that was."""
    now = _processes_of_this_run()

    def kept(pid: int) -> bool:
        while pid in now:
            if pid in before:
                return True
            pid = now[pid]
        return False

    return [pid for pid in now if not kept(pid)]


def _wait_gone(pids: list[int], deadline: float) -> None:
    poll = select.poll()
    fds = []
    for pid in pids:
        try:
            fds.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
        poll.register(fds[-1], select.POLLIN)
    left = len(fds)
    while left and (rest := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            left -= 1
    for fd in fds:
        os.close(fd)


def _command(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        line = ""
    return f"{pid} {line or '(ended, not reaped)'}"


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fails the test if a process that it started (or a descendant) outlives it. Kills what it finds."""
    before = _processes_of_this_run()
    yield
    left = _new_processes(before)
    if not left:
        return
    _wait_gone(left, time.monotonic() + EXIT_GRACE_S)
    left = _new_processes(before)
    if not left:
        return
    lines = "\n".join(_command(pid) for pid in left)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    pytest.fail(f"processes are left of this test:\n{lines}", pytrace=False)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def demo_weights() -> Path:
    """The folder with the demo's weights. Fetches what is missing; a failure to do so fails the test, never skips."""
    from omni_actors.models.weights import demo_folder, pull

    pull(("demo",))
    return demo_folder()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """Call it with a family of :mod:`omni_actors.models.tiny`: the folder of its checkpoint. Nobody writes into it."""
    from omni_actors.models.tiny.cache import cached

    return cached


@pytest.fixture(scope="session")
def shared_once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Make a file once for all processes of this run: call it with a name and a function that writes the file."""
    own = tmp_path_factory.getbasetemp()
    return functools.partial(once, own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
