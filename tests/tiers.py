"""A pytest plug-in that marks tests by what they need, and runs the fast tier: ``pytest --fast``.

Marks are set when tests are collected, from the code of a test and its fixtures and of all functions and classes of
``tests`` and ``examples`` that this code names, however indirectly:

* ``weights``: it takes the fixture ``demo_weights``.
* ``process``: it names something of :data:`STARTERS`.
* ``torch``: it names a module of :data:`HEAVY`, or something of a module that imports one.

The fast tier is every test that has none of :data:`SLOW_MARKS`. A mark that is missing shows there: a fast test that
starts a process fails, and the summary names fast tests that take more than :data:`FAST_CPU_S`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

FAST_CPU_S = 2.0
"""CPU seconds of a fast test with its fixtures."""

SLOW_MARKS = ("process", "torch", "weights", "slow", "vllm")

STARTERS = frozenset(
    {
        "AsyncOmni",
        "AsyncioOmni",
        "Omni",
        "ProcessActor",
        "create_subprocess_exec",
        "multiprocessing",
        "open_launcher",
        "open_omni",
        "open_omni_asyncio",
        "open_orchestrator",
        "open_process",
        "run_process",
        "subprocess",
    }
)
"""Names of functions, classes and modules that start processes."""

HEAVY = frozenset({"diffusers", "onnxruntime", "torch", "transformers"})

ROOT = Path(__file__).parents[1]
_TESTS = tuple(f"{ROOT / folder}/" for folder in ("tests", "examples"))


class ProcessInFastTestError(BaseException):
    """A test of the fast tier starts a process. Code that handles every :class:`Exception` does not hide it."""


# --- marks -----------------------------------------------------------------------------------------------------------


class Needs:
    """Finds what code needs by the names that the code uses."""

    def __init__(self) -> None:
        self._direct: dict[object, tuple[set[str], list[object]]] = {}
        self._modules: dict[str, bool] = {}

    def of(self, test: object) -> set[str]:
        """Return the marks of a function or class, and of all functions and classes of the tests that it names."""
        todo, seen, found = [_plain(test)], set[int](), set[str]()
        while todo:
            item = todo.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            if item not in self._direct:
                self._direct[item] = self._look(item)
            marks, named = self._direct[item]
            found |= marks
            todo += named
        return found

    def _look(self, item: object) -> tuple[set[str], list[object]]:
        """Return the marks that ``item`` gives by itself, and what else of the tests ``item`` names."""
        found, named = set[str](), list[object]()
        if isinstance(item, type):
            for value in (*vars(item).values(), *item.__bases__):
                self._value(value.fget if isinstance(value, property) else value, (), found, named)
        elif isinstance(item, FunctionType):
            self._code(item.__code__, item.__globals__, found, named)
            for cell in item.__closure__ or ():
                with contextlib.suppress(ValueError):
                    self._value(cell.cell_contents, (), found, named)
        return found, named

    def _code(self, code: CodeType, names: dict[str, Any], found: set[str], named: list[object]) -> None:
        if not STARTERS.isdisjoint(code.co_names):
            found.add("process")
        if not HEAVY.isdisjoint(code.co_names):
            found.add("torch")
        for name in code.co_names:
            if name in names:
                self._value(names[name], code.co_names, found, named)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, names, found, named)

    def _value(self, value: object, names: tuple[str, ...], found: set[str], named: list[object]) -> None:
        """Add what one named value gives; of a module of the tests, what its attributes ``names`` give."""
        if isinstance(value, ModuleType):
            if _is_of_tests(value.__name__):
                for name in names:
                    if name in vars(value):
                        self._value(vars(value)[name], names, found, named)
            elif self._imports_heavy(value.__name__):
                found.add("torch")
            return
        value = _plain(value)
        if not isinstance(value, FunctionType | type) or not isinstance(home := value.__module__, str):
            return
        if _is_of_tests(home):
            named.append(value)
        elif value.__name__ in STARTERS:
            found.add("process")
        elif self._imports_heavy(home):
            found.add("torch")

    def _imports_heavy(self, name: str) -> bool:
        """Whether this module is one of :data:`HEAVY`, or a module of ours that imports one, however indirectly."""
        if name.partition(".")[0] in HEAVY:
            return True
        if not name.startswith("omni_actors.") and not _is_of_tests(name):
            return False
        if name not in self._modules:
            self._modules[name] = False  # for circles
            module = sys.modules.get(name)
            values = list(vars(module).values()) if module else []
            homes = {it.__name__ for it in values if isinstance(it, ModuleType)}
            homes |= {it.__module__ for it in values if isinstance(it, FunctionType | type)}
            self._modules[name] = any(self._imports_heavy(home) for home in homes if isinstance(home, str))
        return self._modules[name]


@functools.cache
def _is_of_tests(module: str) -> bool:
    """Whether a module lies in ``tests`` or ``examples``: pytest names some without their first folder."""
    return (getattr(sys.modules.get(module), "__file__", None) or "").startswith(_TESTS)


def _plain(value: Any) -> Any:
    """The function that decorators such as ``@given`` and ``@asynccontextmanager`` wrap, or ``value`` itself."""
    while True:
        if isinstance(value, staticmethod | classmethod | MethodType):
            value = value.__func__
        elif isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, FunctionType | _CACHED) and (inner := _inner(vars(value))) is not None:
            value = inner
        else:
            return value


def _inner(attributes: dict[str, Any]) -> Any:
    return getattr(attributes.get("hypothesis"), "inner_test", None) or attributes.get("__wrapped__")


_CACHED = type(functools.cache(len))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the marks, and leave the fast tier alone if that is asked for."""
    needs = Needs()
    kept: list[pytest.Item] = []
    gone: list[pytest.Item] = []
    for item in items:
        if isinstance(item, pytest.Function):
            marks = needs.of(item.function)
            for definitions in item._fixtureinfo.name2fixturedefs.values():
                for definition in definitions:
                    marks |= needs.of(definition.func)
            if "demo_weights" in item.fixturenames:
                marks.add("weights")
            if "tiny_model" in item.fixturenames:
                marks.add("torch")
            for mark in sorted(marks):
                item.add_marker(mark)
        (gone if any(item.get_closest_marker(mark) for mark in SLOW_MARKS) else kept).append(item)
    if config.getoption("--fast"):
        items[:] = kept
        config.hook.pytest_deselected(items=gone)


# --- the fast tier ---------------------------------------------------------------------------------------------------


class FastTier:
    """The checks on tests that run with ``--fast``."""

    STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
    """Audit events of Python, each raised before a process is started."""

    def __init__(self) -> None:
        self.running: str | None = None
        self.started: list[str] = []
        self.slow: dict[str, float] = {}
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in self.STARTS and self.running is not None:
            self.started.append(f"{event} {args[:2]!r:.200}")
            raise ProcessInFastTestError(f"a test of the fast tier starts a process: {self.started[-1]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.running = item.nodeid
        try:
            return (yield)
        finally:
            self.running = None
            self.started.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        done = yield
        if self.started:  # also where the code under test handled the error
            pytest.fail(f"a test of the fast tier started a process; mark it: {self.started}", pytrace=False)
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, cpu = getattr(report, "took", (0.0, 0.0))
        if cpu > FAST_CPU_S:
            self.slow[report.nodeid] = cpu

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.slow:
            terminalreporter.section(f"fast tests that took more than {FAST_CPU_S:g} s of CPU time")
            for nodeid, cpu in sorted(self.slow.items(), key=lambda it: -it[1]):
                terminalreporter.write_line(f"{cpu:7.1f} s  {nodeid}")


def register(config: pytest.Config) -> None:
    """Mark tests, and check those of the fast tier."""
    config.pluginmanager.register(sys.modules[__name__], "omni_tiers")
    if config.getoption("--fast"):
        config.pluginmanager.register(FastTier(), "omni_fast_tier")
