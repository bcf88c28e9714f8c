"""The driver of recovery: the requests of a dead worker get another attempt, in all stages of their subgraph.

A new attempt begins at the point recorded in the ledgers (:mod:`~omni_actors.orchestrator.ledger`): at once if every
stage has a live replica, else as soon as a replica is ready. Surviving stages take part in the attempt like the others,
under the new key, with their earlier results in their caches.

The policy, about resumes and suspects, is :mod:`~omni_actors.orchestrator.bisection`. The driver holds the quarantined
replicas, the waiting requests, and their deadlines. Quarantines of several stages follow one another, since each keeps
a replica to itself, and the suspects of the others may need the replica.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from omni_actors.orchestrator.bisection import Bisection, CrashHistory, Decision
from omni_actors.orchestrator.deadlines import Deadlines
from omni_actors.orchestrator.request import RequestStream
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.errors import ErrorInfo, OmniError, not_resumable, poison
from omni_actors.protocol.status import ResumeCounts
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")


@dataclass(slots=True)
class _Quarantine:
    """The tests of one stage's suspects on one replica, closed to other requests once the replica is ready."""

    replica: StageReplica
    suspects: Bisection[RequestStream] = field(default_factory=Bisection)


class Recovery:
    """Resumes of one deployment.

    ``attempt`` begins another attempt of a record, with its stages on the given replicas where there are any, or raises
    ``stage_unavailable``. ``returned`` is called when a replica takes all requests again.
    """

    def __init__(
        self,
        limits: DeploymentLimits,
        pools: dict[str, StagePool],
        attempt: Callable[[RequestStream, dict[str, StageReplica]], None],
        returned: Callable[[], None],
    ) -> None:
        self._limits = limits
        self._pools = pools
        self._attempt = attempt
        self._returned = returned
        self._waiting: dict[RequestStream, int] = {}
        """Records that wait until all their stages have replicas, with their slots in ``overdue``."""
        self._accused: dict[RequestStream, int] = {}
        """Records that wait for their test, with their slots in ``overdue``."""
        self.overdue: Deadlines[RequestStream] = Deadlines(self._give_up)
        self._quarantines: dict[str, _Quarantine] = {}
        """By stage; the first one is under way, the others wait for its end."""
        self._tested_at = -math.inf
        """Trio time at which the latest test began."""
        self.stopping = False
        self.resumed: dict[str, int] = dict.fromkeys(pools, 0)
        """Attempts begun after a death, by the stage that died."""
        self.poisoned = 0
        self.pauses_s: deque[float] = deque(maxlen=256)
        """The latest pauses: seconds from a death to the next report of that stage about a resumed request."""
        self.pauses = 0
        self.paused_s = 0.0
        """Number and sum of all pauses."""

    @property
    def waiting(self) -> int:
        """Requests between two attempts."""
        return len(self._waiting) + len(self._accused)

    def counts(self) -> ResumeCounts:
        """Return what became of requests whose worker died."""
        return ResumeCounts(dict(self.resumed), self.poisoned, self.waiting, self.pauses, self.paused_s)

    # ---- what happens to requests and replicas

    def stage_lost(self, record: RequestStream, replica: StageReplica, error: ErrorInfo) -> None:
        """Resume or fail a live request after the loss of an unfinished stage."""
        stage = replica.stage.name
        history = record.crash_history = record.crash_history or CrashHistory()
        if self.stopping:
            record.fail(error)
            return
        died = error.code == "stage_died"
        alone = died and replica.requests_at_exit == 1
        quarantine = self._quarantines.get(stage)
        # Not in test if it is this death that has brought the quarantine about.
        in_test = quarantine is not None and quarantine.replica is replica and replica.quarantined
        decision = history.decide(stage, error.code, alone=alone, in_test=in_test, max_resumes=self._limits.max_resumes)
        if died and in_test and self._limits.max_resumes:
            assert quarantine is not None
            if not alone:
                quarantine.suspects.worker_died(replica.requests_at_exit)
            elif decision is Decision.POISON:
                quarantine.suspects.found()
        if decision is Decision.POISON:
            self.poisoned += 1
            log.error("the request ended %s, alone: poison", replica.name, extra={"request": record.id})
            record.fail(poison(stage).info)
        elif decision is Decision.FAIL:
            record.fail(error)
        elif (obstacle := resume_obstacle(record)) is not None:
            record.fail(not_resumable(obstacle).info)
        else:
            log.info("resumes after the end of %s", replica.name, extra={"request": record.id})
            record.suspend()
            self.resumed[stage] += 1
            history.awaited_since[stage] = trio.current_time()
            if decision is Decision.QUARANTINE:
                self._accuse(record, replica, again=in_test)
            else:
                self._resume(record)

    def stage_progressed(self, record: RequestStream, replica: StageReplica) -> None:
        """Note the first report of a stage about a resumed request: the report ends the pause, and exonerates a request
        under test."""
        history = record.crash_history
        since = None if history is None else history.awaited_since.pop(replica.stage.name, None)
        if since is None:
            return
        pause_s = trio.current_time() - since
        self.pauses_s.append(pause_s)
        self.pauses += 1
        self.paused_s += pause_s
        quarantine = self._quarantines.get(replica.stage.name)
        if quarantine is not None and quarantine.suspects.candidate is record:
            self._test_next(quarantine)

    def request_ended(self, record: RequestStream) -> None:
        """Forget a terminal request, which waits for nothing any more."""
        self._stop_waiting(record)
        if record in self._accused:
            self._drop_accused(record)
        for quarantine in list(self._quarantines.values()):
            quarantine.suspects.forget(record)
            if quarantine.suspects.exhausted:
                self._test_next(quarantine)

    def request_released(self, record: RequestStream) -> None:
        """Test the next suspect, if the released request was under test: no worker holds the request any more."""
        for quarantine in list(self._quarantines.values()):
            if quarantine.suspects.candidate is record:
                self._test_next(quarantine)

    def attempt_left(self, replica: StageReplica) -> None:
        """Test the next suspect, if the quarantined replica has room for one more."""
        quarantine = self._quarantines.get(replica.stage.name)
        if quarantine is not None and quarantine.replica is replica:
            suspects = quarantine.suspects
            if suspects.candidate is None and suspects.limit is not None:
                self._test_next(quarantine)

    def replica_ready(self, replica: StageReplica) -> None:
        """Let waiting requests go on: a replica is ready, and linked."""
        quarantine = self._quarantines.get(replica.stage.name)
        if quarantine is not None and quarantine.replica is replica and quarantine is self._under_way:
            self._open(quarantine)
        self.resume_waiting()

    def resume_waiting(self) -> None:
        """Try again to resume the requests without a replica or a link."""
        for record in list(self._waiting):
            if record in self._waiting:  # else the resume of another one has led to its own
                self._resume(record)

    # ---- resumes

    def _resume(self, record: RequestStream) -> None:
        """Begin another attempt at once or, while a replica or link is missing, later."""
        assigned = {
            stage: quarantine.replica
            for stage, quarantine in self._quarantines.items()
            if record in quarantine.suspects.admitted
        }
        try:
            self._attempt(record, assigned)
        except OmniError as error:
            if error.info.code != "stage_unavailable":
                record.fail(error.info)
            elif record not in self._waiting:
                self._waiting[record] = self._add_deadline(record)
        else:
            self._stop_waiting(record)

    def _stop_waiting(self, record: RequestStream) -> None:
        slot = self._waiting.pop(record, None)
        if slot is not None:
            self.overdue.discard(record, slot)

    def _add_deadline(self, record: RequestStream) -> int:
        return self.overdue.add(record, trio.current_time() + self._limits.resume_wait_s)

    def _give_up(self, record: RequestStream) -> None:
        """Fail a request after too long a wait for a replica. During tests there is a replica, so the time of every
        request behind the tests counts from the start of the latest test."""
        until = self._tested_at + self._limits.resume_wait_s
        if self._quarantines and until > trio.current_time():
            table = self._accused if record in self._accused else self._waiting
            table[record] = self.overdue.add(record, until)
            return
        assert record.subgraph is not None
        dead = [
            part.stage.name
            for part in record.subgraph.parts
            if not any(replica.live for replica in self._pools[part.stage.name].replicas)
        ]
        record.fail(self._pools[dead[0] if dead else record.subgraph.parts[0].stage.name].unavailable().info)

    # ---- quarantine

    def _accuse(self, record: RequestStream, replica: StageReplica, *, again: bool) -> None:
        """Let a request be tested on the dead replica, once the replica is back: before the suspects outside of the
        worker, if the worker was in quarantine (``again``)."""
        stage = replica.stage.name
        accusing = self._quarantines.get(stage)
        if accusing is None:
            accusing = self._quarantines[stage] = _Quarantine(replica)
        for other in list(self._quarantines.values()):
            if other.suspects.candidate is record and other is not accusing:  # it was not that stage that died
                self._test_next(other)
        accusing.suspects.accuse(record, again=again)
        self._accused[record] = self._add_deadline(record)

    def _drop_accused(self, record: RequestStream) -> None:
        self.overdue.discard(record, self._accused.pop(record))

    @property
    def _under_way(self) -> _Quarantine | None:
        return next(iter(self._quarantines.values()), None)

    def _open(self, quarantine: _Quarantine) -> None:
        """Begin the tests: the replica is live, and takes no other requests from now on."""
        quarantine.replica.quarantined = True
        if quarantine.suspects.candidate is None:
            self._test_next(quarantine)

    def _test_next(self, quarantine: _Quarantine) -> None:
        """Let the next suspect into the worker, or end the quarantine after the last one."""
        replica, suspects = quarantine.replica, quarantine.suspects
        suspects.candidate = None
        count = len(replica.requests) + sum(record in self._waiting for record in suspects.admitted)
        if suspects.holds_back(count):
            return  # :meth:`attempt_left` comes back to it
        while suspects.waiting and suspects.candidate is None:
            if not replica.live:
                return  # :meth:`replica_ready` comes back to it
            record = suspects.test_next()
            self._tested_at = trio.current_time()
            self._drop_accused(record)
            self._resume(record)
            if suspects.candidate is record and not record.state.live:  # else its end has brought the next one on
                suspects.candidate = None
        if suspects.candidate is None:
            self._close(quarantine)

    def _close(self, quarantine: _Quarantine) -> None:
        """Give the replica back to all requests, and begin the next quarantine."""
        replica = quarantine.replica
        if self._quarantines.get(replica.stage.name) is not quarantine:
            return  # it has been closed on the way
        del self._quarantines[replica.stage.name]
        replica.quarantined = False
        following = self._under_way
        if following is not None and following.replica.live:
            self._open(following)
        self._returned()
        self.resume_waiting()


def resume_obstacle(record: RequestStream) -> str | None:
    """Return the stage whose output or input keeps another attempt from going on where this one was, if there is
    one."""
    assert record.subgraph is not None
    for part in record.subgraph.parts:
        ledger = record.ledgers.get(part.stage.name)
        if part.stage.recovery == "none" and ledger is not None and ledger.has_output:
            return part.stage.name
    return None if record.streamed_input is None else record.streamed_input.lost_for
