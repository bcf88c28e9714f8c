"""One bad input is one bad request: what an exception means, and how a batch that raises is taken apart.

What was computed together and raised is computed again in parts, until it is known which requests raise alone: those
fail, each with an error of its own, and the others go on as if the former had not been there. So whatever runs for
several requests at once must be repeatable: it changes no request's state before it is sure to return.

A worker ends by an exception of its model in three cases only. Its runtime says that the device is lost to this process
(:attr:`~omni_actors.platforms.platform.Fault.DEVICE`). Or a step was cut short that other ranks take part in, which
cannot be made to try again in parts. Or nothing comes through any more (a whole step of an autoregressive engine, two
items in a row of a one-shot engine), and then an input of the engine's own, one that it has computed when it loaded,
raises too: so it is not the inputs (:class:`BrokenModel`).
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omni_actors.platforms.platform import Fault
from omni_actors.protocol.errors import ErrorInfo, OmniError, out_of_memory, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.worker.checks import OutputError
from omni_actors.worker.device import runtime_of
from omni_actors.worker.ranks import RankLost, RanksDesynchronized

log = logging.getLogger("omni_actors.worker")

RECOVERY_BATCHES = 64
"""So many batches in a row that memory sufficed for raise a lowered limit by an eighth, at least by one."""

T = TypeVar("T")
R = TypeVar("R")


class BrokenModel(RuntimeError):
    """The model fails on an input that it could compute when it was loaded. Only a new process may help."""


class BatchLimit:
    """Most that is computed at once, in whatever is counted: ``most``, but less for a while after memory was short."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._good = 0

    def shrink(self, fits: int) -> None:
        """Memory was short, and so much at once seems to fit."""
        self._good = 0
        if fits < self.now:
            self.now = max(1, fits)
            log.warning("out of memory: batches of at most %d now", self.now)

    def succeeded(self) -> None:
        """A batch came through."""
        if self.now < self.most:
            self._good += 1
            if self._good >= RECOVERY_BATCHES:
                self._good = 0
                self.now = min(self.most, self.now + max(1, self.now // 8))


class Faults:
    """What exceptions mean on this worker's device, and what clients are told of them."""

    def __init__(self, hello: Hello) -> None:
        self.stage = hello.stage
        self.runtime = runtime_of(hello)

    def self_test(self, known: Callable[[], None], error: Exception) -> None:
        """Nothing comes through any more, the last time because of ``error``: raise :class:`BrokenModel` if what is
        ``known`` to be computable is not, either."""
        try:
            known()
        except Exception as again:
            raise BrokenModel(f"the model fails on its warm-up input too ({again!r}), after {error!r}") from again

    def classify(self, error: Exception) -> bool:
        """Whether this exception is about memory; then what can be freed is free on return. What it kept alive (the
        tensors of the frames that it came through) is let go. Raises it again if the device is lost."""
        fault = self.runtime.fault(error)
        if fault is Fault.DEVICE or isinstance(error, RankLost | RanksDesynchronized):
            raise error
        traceback.clear_frames(error.__traceback__)
        if fault is Fault.MEMORY:
            self.runtime.free_memory()
        return fault is Fault.MEMORY

    def is_out_of_memory(self, error: BaseException) -> bool:
        return self.runtime.fault(error) is Fault.MEMORY

    def explain(self, error: Exception, request_id: str) -> ErrorInfo:
        """What the client learns. What only the operator may know goes to the log. Raises it again if the device is
        lost."""
        if isinstance(error, OmniError):
            if error.info.status >= 500:
                log.error("request failed: %s", error.info.message, extra={"request": request_id})
            return error.info
        log.error("request failed", exc_info=error, extra={"request": request_id})
        if self.classify(error):
            return out_of_memory(self.stage).info
        if isinstance(error, OutputError):
            return stage_failed(error.stage or self.stage, f"Bad output: {error}.").info
        return stage_failed(self.stage).info


@dataclass(slots=True)
class BisectedRun(Generic[T, R]):
    """What became of batches that were run: those that came through, in order, with what they gave, and the requests
    that failed alone. ``short`` says that memory was short on the way."""

    done: list[tuple[list[T], R]] = field(default_factory=list)
    failed: dict[int, Exception] = field(default_factory=dict)
    short: bool = False


def run_bisecting(
    batches: Iterable[list[T]],
    run: Callable[[list[T]], R],
    key_of: Callable[[T], int],
    faults: Faults,
    smaller: Callable[[list[T]], Sequence[list[T]]] = lambda part: (),
) -> BisectedRun[T, R]:
    """Run batches one after the other. One that raises is halved by its requests and run again, until one request is
    alone; for lack of memory, its part may become ``smaller`` still. Other parts of a request that has failed are left
    out, but some may be ``done`` by then.

    Raises what says that the device is lost.
    """
    parts = BisectedRun[T, R]()
    waiting = deque(batches)
    while waiting:
        part = waiting.popleft()
        if parts.failed:
            part = [item for item in part if key_of(item) not in parts.failed]
        if not part:
            continue
        try:
            parts.done.append((part, run(part)))
        except Exception as error:
            memory = faults.classify(error)
            parts.short |= memory
            halves = halve_by_request(part, key_of) or (smaller(part) if memory else ())
            if halves:
                log.warning("a batch of %d raised %s: it is run in parts", len(part), type(error).__name__)
                waiting.extendleft(reversed(halves))
            else:
                parts.failed[key_of(part[0])] = error
    return parts


def halve_by_request(part: list[T], key_of: Callable[[T], int]) -> Sequence[list[T]]:
    """Two parts, of one half of the requests each; nothing when there is only one."""
    keys = list(dict.fromkeys(map(key_of, part)))
    if len(keys) < 2:
        return ()
    first = set(keys[: len(keys) // 2])
    return [
        [item for item in part if key_of(item) in first],
        [item for item in part if key_of(item) not in first],
    ]
