"""The policy of recovery over random requests, poison and deaths: no worker, clock or task."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.orchestrator.bisection import CRASHES_IN_COMPANY, RECOVERABLE, Bisection, CrashHistory, Decision

CODES = st.sampled_from(sorted(RECOVERABLE))


@dataclass
class Worker:
    """One replica of a stage with its requests, numbered from 0, and the policy that decides about them.

    A poison request ends the worker either before its first report (``early``), or at any time after it (``late``).
    """

    count: int
    early: frozenset[int]
    late: frozenset[int]
    data: st.DataObject
    inside: list[int] = field(default_factory=list)
    completed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    deaths: int = 0
    most_inside: list[int] = field(default_factory=list)
    """Suspects in the worker at each death in quarantine."""

    def __post_init__(self) -> None:
        self.inside = list(range(self.count))
        self.histories = [CrashHistory() for _ in range(self.count)]
        self.suspects: Bisection[int] = Bisection()

    def die(self, *, in_test: bool) -> list[int]:
        """End the worker. Returns the requests that go on at once."""
        self.deaths += 1
        there, self.inside = self.inside, []
        if in_test:
            self.most_inside.append(len(there))
        resumed = []
        for request in there:
            decision = self.histories[request].decide(
                "llm", "stage_died", alone=len(there) == 1, in_test=in_test, max_resumes=100
            )
            if in_test and len(there) > 1:
                self.suspects.worker_died(len(there))
            match decision:
                case Decision.POISON:
                    self.refused.add(request)
                    self.suspects.found()
                    self.suspects.forget(request)
                    self.suspects.candidate = None  # no worker holds it
                case Decision.QUARANTINE:
                    self.suspects.accuse(request, again=in_test)
                case Decision.RESUME:
                    resumed.append(request)
                case Decision.FAIL:
                    raise AssertionError("the request has resumes left")
        return resumed

    def some(self, requests: list[int]) -> list[int]:
        """A part of these, in their order."""
        return [request for request in requests if self.data.draw(st.booleans())]

    def end(self, request: int) -> None:
        self.inside.remove(request)
        self.completed.add(request)
        self.suspects.forget(request)

    def run(self) -> None:
        """Run all requests to their ends."""
        poison = self.early | self.late
        while self.inside and not self.suspects.waiting:  # in company: nothing is suspected yet
            for request in self.some([it for it in self.inside if it not in poison]):
                self.end(request)
            if not poison & set(self.inside):
                for request in list(self.inside):
                    self.end(request)
                return
            self.inside = self.die(in_test=False)
        while not self.suspects.exhausted:
            self.test()

    def test(self) -> None:
        """One life of the worker in quarantine."""
        while True:
            while self.suspects.waiting and not self.suspects.holds_back(len(self.inside)):
                candidate = self.suspects.test_next()
                self.inside.append(candidate)
                if candidate in self.early:
                    self.die(in_test=True)
                    return
                self.suspects.candidate = None  # it has reported something: exonerated
                for request in self.some([it for it in self.inside if it not in self.late]):
                    self.end(request)
                if self.data.draw(st.booleans()) and self.late & set(self.inside):
                    self.die(in_test=True)
                    return
            if self.late & set(self.inside):
                self.die(in_test=True)
                return
            if not self.inside:
                return
            self.end(self.inside[0])


@given(st.data())
def test_exactly_the_poison_requests_are_refused_and_all_others_complete(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24), "requests")
    numbers = st.sets(st.integers(0, count - 1), max_size=3)
    early = frozenset(data.draw(numbers, "early"))
    late = frozenset(data.draw(numbers, "late")) - early
    worker = Worker(count, early, late, data)
    worker.run()
    assert worker.refused == early | late
    assert worker.completed == set(range(count)) - worker.refused
    # Each poison request is found within one death per halving; the first deaths are in company.
    assert worker.deaths <= 2 + CRASHES_IN_COMPANY + len(worker.refused) * (math.ceil(math.log2(count + 1)) + 2)


@given(st.lists(st.tuples(st.sampled_from("ab"), CODES, st.booleans(), st.booleans())), st.integers(0, 6))
def test_no_request_resumes_more_often_than_allowed_and_none_is_poison_at_its_first_death(
    losses: list[tuple[str, str, bool, bool]], max_resumes: int
) -> None:
    history = CrashHistory()
    for stage, code, alone, in_test in losses:
        crashes = history.crashes[stage]
        decision = history.decide(stage, code, alone=alone, in_test=in_test, max_resumes=max_resumes)
        if decision in (Decision.RESUME, Decision.QUARANTINE):
            assert history.resumes <= max_resumes
        if decision is Decision.POISON:
            assert code == "stage_died"
            assert alone
            assert crashes >= CRASHES_IN_COMPANY
        if decision is Decision.QUARANTINE:
            assert crashes >= CRASHES_IN_COMPANY
        if not max_resumes:
            assert decision is Decision.FAIL


def test_a_replacement_by_command_costs_a_request_nothing() -> None:
    history = CrashHistory()
    for _ in range(10):
        decision = history.decide("llm", "stage_replaced", alone=True, in_test=False, max_resumes=1)
        assert decision is Decision.RESUME
    assert not history.resumes
    assert not history.crashes


def test_the_suspects_of_a_death_in_quarantine_are_tested_first_and_the_last_ones_before_the_others() -> None:
    suspects: Bisection[str] = Bisection()
    for name in "abcd":
        suspects.accuse(name, again=False)
    assert [suspects.test_next(), suspects.test_next()] == ["a", "b"]
    suspects.worker_died(2)
    for name in "ab":
        suspects.accuse(name, again=True)
    assert list(suspects.waiting) == ["b", "a", "c", "d"]
    suspects.test_next()
    assert suspects.holds_back(1)
    assert not suspects.holds_back(0)
    suspects.found()
    assert not suspects.holds_back(1)


def test_a_bisection_is_exhausted_when_no_suspect_waits_is_tested_or_is_in_the_worker() -> None:
    suspects: Bisection[str] = Bisection()
    assert suspects.exhausted
    suspects.accuse("a", again=False)
    suspects.accuse("b", again=False)
    suspects.test_next()
    suspects.forget("b")
    assert not suspects.exhausted
    suspects.candidate = None
    assert not suspects.exhausted
    suspects.forget("a")
    assert suspects.exhausted
