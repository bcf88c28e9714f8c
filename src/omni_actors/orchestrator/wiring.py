"""The links between workers: made when a replica is ready, and made anew when one breaks while both its ends live."""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import socket
from collections.abc import Mapping

import trio

from omni_actors.connectors.handshake import SECRET_BYTES
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import link_lost
from omni_actors.protocol.frames import TcpEnd, Unlinked
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica

log = logging.getLogger("omni_actors.orchestrator")


class Wiring:
    """The links of a deployment: every live replica has one link to each live replica of the stages that its edges lead
    to or come from."""

    def __init__(self, plan: Plan, pools: Mapping[str, StagePool]) -> None:
        self._limits = plan.limits
        self._pools = pools
        self._ids = itertools.count()
        self._neighbours = {
            stage.name: {edge.source for edge in plan.edges if edge.target == stage.name}
            | {edge.target for edge in plan.edges if edge.source == stage.name}
            for stage in plan.stages
        }
        self._by_tcp = {(edge.source, edge.target) for edge in plan.edges if edge.connector == "tcp"}
        self._anew: dict[frozenset[StageReplica], tuple[float, float]] = {}
        """For each pair of replicas, the time at which their latest link was made anew, and the pause before it."""

    def wire(self, replica: StageReplica) -> None:
        """Link a replica that is ready to every live replica of its neighbour stages.

        Both ends get their frames before any Submit that uses the link, on the same ordered channels, so that no
        request waits for a link.
        """
        for name in sorted(self._neighbours[replica.stage.name]):
            for other in self._pools[name].replicas:
                if other.live and other is not replica:
                    self._link(replica, other)

    async def unlinked(self, replica: StageReplica, message: Unlinked) -> None:
        """Handle a broken TCP link of a replica: fail the requests that the break left unfinished, and make another
        link.

        The requests fail after a moment, unless the death of the other end has failed them by then. If the other end
        lives, the new link follows after a pause, which grows while links do not last. This runs within the incarnation
        of the replica that reported the break: when the incarnation ends, the link is over in any case.
        """
        other = self._other_end(replica, message.link)
        if other is not None:
            # From here on no request is bound to this pair.
            replica.unwire(other, message.link)
            other.unwire(replica, message.link)
        moment_s = self._limits.restart_delay_s
        pause_s = moment_s if other is None else self._pause_s(replica, other)
        await trio.sleep(moment_s)
        lost = link_lost(replica.stage.name).info
        for key in message.keys:
            if (listener := replica.requests.get(key)) is not None:
                listener.on_failed(replica, key, lost)
        await trio.sleep(pause_s - moment_s)
        if other is None or not replica.live or not other.live:
            return
        if (other.stage.name, other.index) not in replica.links:  # one of them may have a new worker meanwhile
            log.warning("the link between %s and %s was broken and is made anew", replica.name, other.name)
            self._anew[frozenset((replica, other))] = (trio.current_time(), pause_s)
            self._link(replica, other)

    def unlinked_of(self, pool: StagePool) -> tuple[str, ...]:
        """Return the live neighbour stages that no live replica of this stage has a link to."""
        live = [replica for replica in pool.replicas if replica.live]
        linked = {name for replica in live for name, _index in replica.links}
        return tuple(
            name
            for name in sorted(self._neighbours[pool.stage.name] - linked)
            if live and any(other.live for other in self._pools[name].replicas)
        )

    def _link(self, one: StageReplica, two: StageReplica) -> None:
        link = next(self._ids)
        for source, target in ((one, two), (two, one)):
            if (source.stage.name, target.stage.name) in self._by_tcp:
                assert target.address is not None, "a worker with input by TCP reports its address"
                secret = secrets.token_bytes(SECRET_BYTES)
                target.wire(link, source, TcpEnd(secret))
                source.wire(link, target, TcpEnd(secret, target.address))
                return
        ours, theirs = socket.socketpair()
        one.wire(link, two, ours.detach())
        two.wire(link, one, theirs.detach())

    def _other_end(self, replica: StageReplica, link: int) -> StageReplica | None:
        for (stage, index), id in replica.links.items():
            if id == link:
                return self._pools[stage].replicas[index]
        return None

    def _pause_s(self, one: StageReplica, two: StageReplica) -> float:
        """Return the pause before the next link between two replicas, in seconds: longer while links do not last."""
        first, cap = self._limits.restart_delay_s, self._limits.restart_delay_max_s
        at, pause_s = self._anew.get(frozenset((one, two)), (-math.inf, first))
        return first if trio.current_time() - at > 2 * cap else max(first, min(cap, 2 * pause_s))
