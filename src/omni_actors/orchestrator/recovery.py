"""What becomes of the requests in a worker that dies: another attempt, in all stages of their subgraph.

A new attempt begins where the ledgers say that the old one was (:mod:`~omni_actors.orchestrator.ledger`), at once if
every stage has a live replica, else as soon as one is ready. Stages that live on take part in it like the others, under
the new key: what they had computed lies in their caches.

Any request of a worker may have been what killed it. The first time all of them are *suspects* together and go on
together, since a worker seldom dies of its requests. Those whose worker dies once more are tried: one at a time, on the
replica that died, which takes no others until that is done. Who has got further there than before is cleared, and stays
while the next one is tried. If the worker dies even so, those who were in it are tried again, the last ones first, and
never more than half as many of them at once, until one is alone or all have ended. Who dies alone is refused as poison.
One stage's trial follows on another's.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from omni_actors.orchestrator.deadlines import Deadlines
from omni_actors.protocol.errors import ErrorInfo, OmniError, not_resumable, poison
from omni_actors.protocol.frames import Feed
from omni_actors.protocol.status import ResumeCounts

if TYPE_CHECKING:
    from omni_actors.orchestrator.request import RequestStream
    from omni_actors.pipelines.plan import DeploymentLimits
    from omni_actors.stages.pool import StagePool
    from omni_actors.stages.replica import StageReplica

RECOVERABLE = frozenset({"stage_died", "stage_replaced", "link_lost"})
"""Codes of failures after which a request may go on in another attempt."""

KEPT_FEED_BYTES = 1 << 20
"""Streaming input of one request that is kept for another attempt."""

_COMPANY = 1
"""How often a request may see its worker in one stage die and go on in company."""

log = logging.getLogger("omni_actors.orchestrator")


@dataclass(slots=True)
class Casualty:
    """A request as the deaths around it go: how many attempts it had on account of them, how many of the deaths of
    each stage may be its doing, and since when (trio time) the next word of which stages about it is waited for."""

    resumes: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    watched: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Feeds:
    """Streaming input of one request, kept for another attempt as long as it is not too much. ``ended`` are the
    modalities that get no more; of the pieces ``sent``, the present attempt has ``consumed`` so many."""

    sent: int = 0
    consumed: int = 0
    moved: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    """Woken when pieces are consumed, and when the request is over."""
    ended: set[str] = field(default_factory=set)
    kept: list[tuple[str, Feed]] = field(default_factory=list)
    lost_for: str | None = None
    """The stage whose input was too much."""
    _bytes: int = 0

    def keep(self, stage: str, fed: Feed, size: int) -> None:
        self._bytes += size
        if self._bytes > KEPT_FEED_BYTES:
            self.lost_for = stage
            self.kept.clear()
        if self.lost_for is None:
            self.kept.append((stage, fed))


@dataclass(slots=True)
class _Trial:
    """The suspects of one stage. ``on`` is the one that is tried, on the replica ``place``, which is theirs alone.
    ``there`` are those who have been tried so far: for what else happens to them they need not go away. ``most`` may be
    there at once, until they end, once it has died with more."""

    waiting: deque[RequestStream] = field(default_factory=deque)
    on: RequestStream | None = None
    place: StageReplica | None = None
    there: set[RequestStream] = field(default_factory=set)
    most: int | None = None


class Recovery:
    """``attempt`` begins another attempt of a record, with its stages on these replicas if given, or raises
    ``stage_unavailable``. ``returned`` is told that a replica takes everybody again."""

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
        """Records that wait for any replicas, with their slots in ``overdue``."""
        self._accused: dict[RequestStream, int] = {}
        """Those that wait for their trial."""
        self.overdue: Deadlines[RequestStream] = Deadlines(self._give_up)
        self._trials: dict[str, _Trial] = {}
        self._tried_at = -math.inf
        """When the last suspect began to be tried."""
        self.stopping = False
        self.resumed: dict[str, int] = dict.fromkeys(pools, 0)
        """Attempts begun after a death, by the stage that died."""
        self.poisoned = 0
        self.pauses_s: deque[float] = deque(maxlen=256)
        """Seconds from a death to the first word of its stage about a request that was in it, of the last ones."""
        self.pauses = 0
        self.paused_s = 0.0
        """Number and sum of all of them."""

    @property
    def waiting(self) -> int:
        """Requests between two attempts."""
        return len(self._waiting) + len(self._accused)

    def counts(self) -> ResumeCounts:
        """Return what became of requests whose worker died."""
        return ResumeCounts(dict(self.resumed), self.poisoned, self.waiting, self.pauses, self.paused_s)

    # ---- what happens

    def lost(self, record: RequestStream, replica: StageReplica, error: ErrorInfo) -> None:
        """A live request has lost a stage that was not done with it."""
        stage = replica.stage.name
        casualty = record.casualty = record.casualty or Casualty()
        trial = self._trials.get(stage)
        if self.stopping or not self._limits.max_resumes:
            record.fail(error)
            return
        if error.code == "stage_died":
            alone = replica.casualties == 1
            # Not if it is this death that has brought the trial about.
            tried = trial is not None and trial.place is replica and replica.reserved
            if alone and casualty.strikes[stage] >= _COMPANY:
                self.poisoned += 1
                if tried and trial is not None:
                    trial.most = None  # it was that one
                log.error("the request ended %s, alone: poison", replica.name, extra={"request": record.id})
                record.fail(poison(stage).info)
                return
            if tried and not alone:
                assert trial is not None
                trial.most = max(1, replica.casualties // 2)  # it may be one that was cleared too early
            else:
                casualty.resumes += 1
            casualty.strikes[stage] += 1
        elif error.code == "link_lost":
            casualty.resumes += 1
        if casualty.resumes > self._limits.max_resumes:
            record.fail(error)
            return
        if (obstacle := record.obstacle) is not None:
            record.fail(not_resumable(obstacle).info)
            return
        log.info("resumes after the end of %s", replica.name, extra={"request": record.id})
        record.suspend()
        self.resumed[stage] += 1
        casualty.watched[stage] = trio.current_time()
        if error.code == "stage_died" and casualty.strikes[stage] > _COMPANY:
            self._accuse(record, replica, again=tried)
        else:
            self._go_on(record)

    def progress(self, record: RequestStream, replica: StageReplica) -> None:
        """A stage has said something about a request that was in a death."""
        since = None if record.casualty is None else record.casualty.watched.pop(replica.stage.name, None)
        if since is None:
            return
        pause_s = trio.current_time() - since
        self.pauses_s.append(pause_s)
        self.pauses += 1
        self.paused_s += pause_s
        trial = self._trials.get(replica.stage.name)
        if trial is not None and trial.on is record:
            self._next(trial)

    def over(self, record: RequestStream) -> None:
        """A request is terminal: it waits for nothing any more."""
        self._wait_no_more(record)
        accused = record in self._accused
        if accused:
            self._acquit(record)
        for trial in list(self._trials.values()):
            trial.there.discard(record)
            if accused and record in trial.waiting:
                trial.waiting.remove(record)
            if trial.on is None and not trial.waiting and not trial.there:
                self._next(trial)

    def released(self, record: RequestStream) -> None:
        """No worker holds it any more: the next one can be tried."""
        for trial in list(self._trials.values()):
            if trial.on is record:
                self._next(trial)

    def left(self, replica: StageReplica) -> None:
        """An attempt is no more in a replica that is reserved: there may be room for somebody to be tried."""
        trial = self._trials.get(replica.stage.name)
        if trial is not None and trial.place is replica and trial.on is None and trial.most is not None:
            self._next(trial)

    def ready(self, replica: StageReplica) -> None:
        """A replica is ready, and linked: who waits goes on."""
        trial = self._trials.get(replica.stage.name)
        if trial is not None and trial.place is replica and trial is self._first:
            self._open(trial)
        self.wake()

    def wake(self) -> None:
        """A replica or a link may be there that a request waits for."""
        for record in list(self._waiting):
            if record in self._waiting:  # else what another one came to has brought it on
                self._go_on(record)

    # ---- going on

    def _go_on(self, record: RequestStream) -> None:
        """Begin another attempt, or wait until that is possible."""
        places = {
            stage: trial.place
            for stage, trial in self._trials.items()
            if record in trial.there and trial.place is not None
        }
        try:
            self._attempt(record, places)
        except OmniError as error:
            if error.info.code != "stage_unavailable":
                record.fail(error.info)
            elif record not in self._waiting:
                self._waiting[record] = self._patience(record)
        else:
            self._wait_no_more(record)

    def _wait_no_more(self, record: RequestStream) -> None:
        slot = self._waiting.pop(record, None)
        if slot is not None:
            self.overdue.discard(record, slot)

    def _patience(self, record: RequestStream) -> int:
        return self.overdue.add(record, trio.current_time() + self._limits.resume_wait_s)

    def _give_up(self, record: RequestStream) -> None:
        """No replica came back in time. While suspects are tried there is one: whoever may be waiting for their end
        waits for so long from the last one's begin."""
        until = self._tried_at + self._limits.resume_wait_s
        if self._trials and until > trio.current_time():
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

    # ---- trials

    def _accuse(self, record: RequestStream, replica: StageReplica, *, again: bool) -> None:
        """Try a request on the replica that died with it, once that is back; before those who were not in it, if it
        was being tried."""
        trial = self._trials.setdefault(replica.stage.name, _Trial())
        for other in list(self._trials.values()):
            if other.on is record and other is not trial:  # that stage is not what it is accused of now
                self._next(other)
        trial.there.discard(record)
        if trial.on is record:
            trial.on = None
        if again:
            trial.waiting.appendleft(record)
        else:
            trial.waiting.append(record)
        self._accused[record] = self._patience(record)
        if trial.place is None:
            trial.place = replica

    def _acquit(self, record: RequestStream) -> None:
        self.overdue.discard(record, self._accused.pop(record))

    @property
    def _first(self) -> _Trial | None:
        """The trial that is under way. Those of other stages wait for its end: each keeps a replica to itself that the
        others' suspects may need."""
        return next(iter(self._trials.values()), None)

    def _open(self, trial: _Trial) -> None:
        """The replica is there: nobody else gets in from now on."""
        assert trial.place is not None
        trial.place.reserved = True
        if trial.on is None:
            self._next(trial)

    def _next(self, trial: _Trial) -> None:
        """Try the next suspect, or give the replica back to all."""
        place = trial.place
        assert place is not None
        trial.on = None
        there = len(place.requests) + sum(record in self._waiting for record in trial.there)
        if trial.most is not None and there and (there >= trial.most or not trial.waiting):
            return  # :meth:`left` comes back to it
        while trial.waiting and trial.on is None:
            if not place.live:
                return  # :meth:`ready` comes back to it
            trial.on = record = trial.waiting.popleft()
            trial.there.add(record)
            self._tried_at = trio.current_time()
            self._acquit(record)
            self._go_on(record)
            if trial.on is record and not record.state.live:  # else its end has brought the next one on
                trial.on = None
        if trial.on is None:
            self._close(trial)

    def _close(self, trial: _Trial) -> None:
        """Nobody is left to be tried."""
        place = trial.place
        assert place is not None
        if self._trials.get(place.stage.name) is not trial:
            return  # it has been closed on the way
        del self._trials[place.stage.name]
        place.reserved = False
        following = self._first
        if following is not None and following.place is not None and following.place.live:
            self._open(following)
        self._returned()
        self.wake()
