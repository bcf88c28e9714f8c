"""A pytest plug-in that keeps how long each test takes, and shows the files that take the most CPU time.

The file ``results/test_durations.json`` maps a test's id to ``[seconds, CPU seconds]``; a run replaces the entries of
the tests that it runs and keeps the others. CPU seconds are user and system time of the test's process and of all its
descendants that were waited for, set-up and tear-down of fixtures included. A fixture of a module or a session counts
for the test that sets it up or tears it down.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

DURATIONS = Path("results/test_durations.json")
"""Below pytest's root folder, and not in the repository: ``results/`` is ignored by git."""

SHOWN = 10
"""Files that the summary names."""


def cpu_seconds() -> float:
    """Return the user and system time of this process and of its descendants that were waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(it.ru_utime + it.ru_stime for it in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the test with its fixtures; :func:`pytest_runtest_makereport` hands the figures on."""
    item.stash[_BEGAN] = (time.perf_counter(), cpu_seconds())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the figures to the report of the tear-down, which pytest-xdist sends to the controlling process."""
    report = yield
    if report.when == "teardown":
        began, used = item.stash[_BEGAN]
        report.took = (round(time.perf_counter() - began, 3), round(cpu_seconds() - used, 3))  # type: ignore[attr-defined]
    return report


_BEGAN = pytest.StashKey[tuple[float, float]]()


class Durations:
    """The durations that the controlling process gathers: one ``(seconds, CPU seconds)`` for each test that ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.took: dict[str, tuple[float, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (took := getattr(report, "took", None)) is not None:
            self.took[report.nodeid] = tuple(took)

    def pytest_sessionfinish(self) -> None:
        """Replace the file by one rename, so that two runs at once leave a whole one."""
        if not self.took:
            return
        try:
            kept = json.loads(self.path.read_text())
        except (OSError, ValueError):
            kept = {}
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(dict(sorted({**kept, **self.took}.items())), indent=0))
        new.replace(self.path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: dict[str, float] = defaultdict(float)
        for nodeid, (_, cpu) in self.took.items():
            files[nodeid.partition("::")[0]] += cpu
        if len(files) < 2:
            return
        terminalreporter.section(f"CPU time of files: {SHOWN} largest of {sum(files.values()):.0f} s")
        for file, cpu in sorted(files.items(), key=lambda it: -it[1])[:SHOWN]:
            terminalreporter.write_line(f"{cpu:7.1f} s  {file}")


def register(config: pytest.Config) -> None:
    """Measure tests in every process, and gather in the controlling one."""
    config.pluginmanager.register(sys.modules[__name__], "omni_durations")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config.rootpath / DURATIONS), "omni_durations_file")
