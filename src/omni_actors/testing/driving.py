"""A driver that runs an engine inside the test's process as a worker's loop does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.testing.outcome import Outcome
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.isolation import Faults
from omni_actors.worker.returned import flag_of

MOST_TURNS = 100_000


class Broken(AssertionError):
    """The stage breaks a rule of the contract between an engine and its loop; the message names the rule."""


@dataclass
class Job:
    """A request for one stage. ``inputs`` are the payloads for each port, in order; ``abort_at`` is the step of the
    engine before which the request is aborted."""

    work: Work
    inputs: dict[str, Sequence[Payload]] = field(default_factory=dict)
    abort_at: int | None = None


class Box:
    """The engine's outbox. With ``chance`` credits are scarce: they come back at random, between steps."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.over: set[int] = set()
        self.consumed_of: dict[int, int] = {}
        self._chance = chance
        self._credits: dict[int, int] = {}

    def admit(self, key: int) -> None:
        self.outcomes[key] = Outcome()
        self._credits[key] = 0 if self._chance is not None else 1 << 30

    def give_back(self) -> None:
        """Give back credits at random, as if some consumers had read."""
        if self._chance is not None:
            for key in self._credits:
                self._credits[key] = min(2, self._credits[key] + self._chance.randrange(2))

    def ready(self, key: int) -> bool:
        return self._credits.get(key, 1) > 0

    def text(self, delta: TextDelta) -> None:
        if (outcome := self._open(delta.key, "text")) is not None:
            outcome.text[delta.index] = outcome.text.get(delta.index, "") + delta.text

    def media(self, chunk: MediaChunk) -> None:
        if (outcome := self._open(chunk.key, "media")) is not None:
            outcome.sound += chunk.data

    def progress(self, progress: StepProgress) -> None:
        self._open(progress.key, "progress")

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        """Ignore records for a new attempt: there is none here."""

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        outcome = self._open(key, "a payload")
        if outcome is None:
            return
        if not self.ready(key):
            raise Broken("the engine emits a payload for a request whose edges have no credit (see Outbox.ready)")
        self._credits[key] -= 1
        outcome.payloads.append(payload.copy())

    def consumed(self, key: int, port: str) -> None:
        self.consumed_of[key] = self.consumed_of.get(key, 0) + 1

    def finish(self, key: int, usage: Usage) -> None:
        if (outcome := self._open(key, "its end")) is not None:
            outcome.usage = usage
            self.over.add(key)

    def fail(self, key: int, error: ErrorInfo) -> None:
        if (outcome := self._open(key, "its failure")) is not None:
            outcome.error = error
            self.over.add(key)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        """Ignore replies: there are no queries here."""

    def _open(self, key: int, what: str) -> Outcome | None:
        if key in self.over:
            raise Broken(f"the engine puts out {what} of a request that is over")
        return self.outcomes.get(key)


def drive(
    engine: Engine, jobs: Sequence[Job], *, order: random.Random | None = None, credits: random.Random | None = None
) -> dict[int, Outcome]:
    """Run the jobs to their end, and return the outcome of each by key.

    Args:
        engine: The engine, loaded.
        jobs: The requests.
        order: Mix input and steps at random; without it all input comes before the first step.
        credits: Make credits scarce at random.

    Raises:
        Broken: The engine breaks a rule of the contract. Exceptions of the engine's step are passed on.
    """
    box, faults = Box(credits), Faults(engine.hello)
    waiting = deque(jobs)
    feeds: dict[int, deque[tuple[str, Payload | None, bool]]] = {}
    by_key = {job.work.key: job for job in jobs}
    queued: dict[int, int] = {}
    steps = 0

    def fail(job: Job, error: Exception) -> None:
        engine.abort(job.work.key)
        feeds.pop(job.work.key, None)
        if job.work.key not in box.over:
            box.fail(job.work.key, faults.explain(error, job.work.request_id))

    for _ in range(MOST_TURNS):
        for key in [key for key in feeds if key in box.over]:
            del feeds[key]
        more = bool(waiting) or bool(feeds)
        if not more and not engine.runnable:
            break
        if more and (order is None or not engine.runnable or order.random() < 0.5):
            if waiting:
                job = waiting.popleft()
                box.admit(job.work.key)
                try:
                    engine.admit(job.work)
                    feeds[job.work.key] = _feeds(job)
                except Exception as error:
                    fail(job, error)
                continue
            key = next(iter(feeds)) if order is None else order.choice(list(feeds))
            if not feeds[key]:
                del feeds[key]
                continue
            port, payload, end = feeds[key].popleft()
            try:
                taken = flag_of(engine, "feed", engine.feed(key, port, payload, end), "whether the payload is consumed")
                queued[key] = queued.get(key, 0) + (not taken and payload is not None)
            except Exception as error:
                fail(by_key[key], error)
            continue
        for job in jobs:
            if job.abort_at == steps and job.work.key not in box.over and job.work.key in box.outcomes:
                engine.abort(job.work.key)
                feeds.pop(job.work.key, None)
                box.over.add(job.work.key)
        steps += 1
        if not engine.runnable:
            continue
        moved = flag_of(engine, "step", engine.step(box), "whether anything ran")
        if not moved and credits is None and not more and engine.runnable:
            raise Broken("the engine is runnable, every request has credit, and its step does nothing")
        box.give_back()
    else:
        raise Broken(f"the requests do not end in {MOST_TURNS} turns")
    _check_end(engine, jobs, box, queued)
    return box.outcomes


def _feeds(job: Job) -> deque[tuple[str, Payload | None, bool]]:
    """Return the feeds of all ports in turns, each port with its end."""
    columns: dict[str, list[tuple[Payload | None, bool]]] = {
        port: [*((payload, i + 1 == len(payloads)) for i, payload in enumerate(payloads))] or [(None, True)]
        for port, payloads in job.inputs.items()
    }
    found: deque[tuple[str, Payload | None, bool]] = deque()
    for place in range(max(map(len, columns.values()), default=0)):
        found.extend((port, *column[place]) for port, column in columns.items() if place < len(column))
    return found


def _check_end(engine: Engine, jobs: Sequence[Job], box: Box, queued: dict[int, int]) -> None:
    for job in jobs:
        outcome = box.outcomes[job.work.key]
        if job.work.key not in box.over:
            raise Broken(f"request {job.work.request_id} has neither finished nor failed, and nothing is left to do")
        consumed = box.consumed_of.get(job.work.key, 0)
        if outcome.usage is not None and consumed != queued.get(job.work.key, 0):
            raise Broken(f"{queued.get(job.work.key, 0)} payloads were queued by feed, and {consumed} called consumed")
    busy = {name: it for name, it in engine.counters().items() if it and not name.endswith(("_total", "_bytes"))}
    if busy:
        raise Broken(f"all requests are over, and counters are not zero: {busy}")
