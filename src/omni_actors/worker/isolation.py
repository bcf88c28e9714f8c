"""Isolation of failures: one bad input is one bad request.

A batch that raises is bisected: the batch is computed again in parts until the requests that raise alone are known.
Those requests fail, each with an error of its own, and the others go on as if the failed ones had never been there. So
code that runs for several requests at once must be repeatable: no state of a request changes before a sure return.

An exception of the model ends the worker in three cases only:

- The runtime says that the device is lost to this process (:attr:`~omni_actors.platforms.platform.Fault.DEVICE`).
- A step with other ranks was cut short: the ranks cannot be made to try again in parts.
- Nothing succeeds any more (a whole step of an autoregressive engine, two items in a row of a one-shot engine), and the
  engine's own input, computed successfully after loading, raises too: the clients' inputs are not the cause
  (:class:`BrokenModel`).
"""

from __future__ import annotations

import logging
import traceback
import warnings
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
"""Consecutive batches with enough memory after which a lowered limit is raised by an eighth, at least by one."""

T = TypeVar("T")
R = TypeVar("R")


class BrokenModel(RuntimeError):
    """The model fails on an input that succeeded when the model was loaded. Only a new process may help."""


class BatchLimit:
    """The most that is computed at once, in any unit: ``most``, but less for a while after memory was short."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._good = 0

    def shrink(self, fits: int) -> None:
        """Lower the limit after an out-of-memory error to ``fits``, which seems to fit."""
        self._good = 0
        if fits < self.now:
            self.now = max(1, fits)
            log.warning("out of memory: batches of at most %d items from now on", self.now)

    def succeeded(self) -> None:
        """Count a batch that succeeded; enough of them in a row raise a lowered limit."""
        if self.now < self.most:
            self._good += 1
            if self._good >= RECOVERY_BATCHES:
                self._good = 0
                self.now = min(self.most, self.now + max(1, self.now // 8))


class Faults:
    """The meaning of exceptions on this worker's device, and the clients' errors for them."""

    def __init__(self, hello: Hello) -> None:
        self.stage = hello.stage
        self.runtime = runtime_of(hello)

    def self_test(self, known: Callable[[], None], error: Exception) -> None:
        """Raise :class:`BrokenModel` if ``known``, a computation that succeeded when the model was loaded, fails too.
        Called when nothing succeeds any more, the last time because of ``error``."""
        try:
            known()
        except Exception as again:
            raise BrokenModel(f"the model fails on its warm-up input too ({again!r}), after {error!r}") from again

    def classify(self, error: Exception) -> bool:
        """Return whether the exception is about memory; if so, free the memory that can be freed.

        Releases the tensors kept alive by the exception's frames. Raises the exception again if the device is lost.
        """
        fault = self.runtime.fault(error)
        if fault is Fault.DEVICE or isinstance(error, RankLost | RanksDesynchronized):
            raise error
        traceback.clear_frames(error.__traceback__)
        if fault is Fault.MEMORY:
            self.runtime.free_memory()
        return fault is Fault.MEMORY

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether this exception is about memory, without any side effect."""
        return self.runtime.fault(error) is Fault.MEMORY

    def explain(self, error: Exception, request_id: str) -> ErrorInfo:
        """Return the error for the client, and log the details that only the operator may know. Raises the exception
        again if the device is lost."""
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

    # The earlier names, which the author's kit keeps.
    def weigh(self, error: Exception) -> bool:
        """Call :meth:`classify`, under its earlier name."""
        warnings.warn("Faults.weigh is now Faults.classify", DeprecationWarning, stacklevel=2)
        return self.classify(error)

    def prove(self, known: Callable[[], None], error: Exception) -> None:
        """Call :meth:`self_test`, under its earlier name."""
        warnings.warn("Faults.prove is now Faults.self_test", DeprecationWarning, stacklevel=2)
        self.self_test(known, error)

    def about_memory(self, error: BaseException) -> bool:
        """Call :meth:`is_out_of_memory`, under its earlier name."""
        warnings.warn("Faults.about_memory is now Faults.is_out_of_memory", DeprecationWarning, stacklevel=2)
        return self.is_out_of_memory(error)


@dataclass(slots=True)
class BisectedRun(Generic[T, R]):
    """The result of a bisected run: the successful batches in order, with their results, and the requests that failed
    alone. ``short`` says whether memory was short in between."""

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
    """Run batches one after the other. A batch that raises is halved by its requests and run again, until one request
    is alone; for lack of memory, a part may become ``smaller`` still.

    Later parts of a failed request are left out, but some may be ``done`` by then. Raises the exceptions of a lost
    device.
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
                log.warning("a batch of %d items raised %s and is run again in parts", len(part), type(error).__name__)
                waiting.extendleft(reversed(halves))
            else:
                parts.failed[key_of(part[0])] = error
    return parts


def halve_by_request(part: list[T], key_of: Callable[[T], int]) -> Sequence[list[T]]:
    """Return two parts with half of the requests each; nothing if there is only one request."""
    keys = list(dict.fromkeys(map(key_of, part)))
    if len(keys) < 2:
        return ()
    first = set(keys[: len(keys) // 2])
    return [
        [item for item in part if key_of(item) in first],
        [item for item in part if key_of(item) not in first],
    ]
