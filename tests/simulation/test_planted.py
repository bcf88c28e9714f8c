"""The simulation finds bugs: each of these, planted into the production code, within a thousand schedules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from omni_actors.orchestrator import request
from omni_actors.orchestrator.admission import Admission
from omni_actors.orchestrator.ledger import StageLedger
from omni_actors.orchestrator.request import RequestStream
from omni_actors.protocol.request import Completed
from omni_actors.protocol.states import RequestState
from omni_actors.stages.replica import StageReplica
from omni_actors.worker.credits import Route
from omni_actors.worker.output_collector import OutputCollector

from .__main__ import BATCH, search

MOST = 1000
"""Schedules within which a bug has to be found."""

Patch = Callable[[pytest.MonkeyPatch], None]


def _losing(kind: type, name: str, one_in: int) -> Patch:
    """One call in so many of a method does nothing."""
    method = getattr(kind, name)

    def plant(patch: pytest.MonkeyPatch) -> None:
        calls = itertools.count(1)

        def lossy(self: Any, *args: Any, **kwargs: Any) -> Any:
            return None if next(calls) % one_in == 0 else method(self, *args, **kwargs)

        patch.setattr(kind, name, lossy)

    return plant


def _double_terminal(patch: pytest.MonkeyPatch) -> None:
    end = RequestStream._end

    def ends_twice(self: RequestStream, state: RequestState) -> None:
        end(self, state)
        if state is RequestState.COMPLETED and self.key % 7 == 0:
            self._events.append(Completed(self.usage))

    patch.setattr(RequestStream, "_end", ends_twice)


def _failure_after_completion(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestState.COMPLETED, "live", True)


PLANTED: dict[str, tuple[Patch, str]] = {
    "a lost abort": (_losing(StageReplica, "abort", 10), "after its end|holds|in flight"),
    "a double terminal event": (_double_terminal, "got something after its end"),
    "an end after the end": (_failure_after_completion, "hangs|IllegalTransition"),
    "a leaked credit": (_losing(OutputCollector, "acknowledged", 10), "deadline_exceeded|holds"),
    "credits that nobody counts": (
        lambda patch: patch.setattr(Route, "ready", property(lambda self: True)),
        "more chunks under way than",
    ),
    "an unbounded queue": (
        lambda patch: patch.setattr(request, "event_bytes", lambda event: 0),
        "bytes wait for a client",
    ),
    "a leaked permit": (_losing(Admission, "release", 10), "admission counts"),
    "a prefix that is forgotten": (
        lambda patch: patch.setattr(StageLedger, "again", lambda self: (None, 0)),
        "text .* instead of|text after|bytes came as",
    ),
    "input that is not fed again": (
        _losing(RequestStream, "feed_again", 1),
        "deadline_exceeded|bytes came as|not_resumable",
    ),
}
"""Bugs, and what is said of them."""


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, symptom = PLANTED[bug]
    plant(monkeypatch)
    runs = 0
    for seed in range(MOST // BATCH):
        found = search(seed, shrink=False)
        runs += found.runs
        if found.schedule is not None:
            print(f"{bug}: found in schedule {runs}: {found.violations}")
            assert re.search(symptom, "\n".join(found.violations))
            return
    pytest.fail(f"{bug} is not found in {runs} schedules")
