"""The media process as the orchestrator sees it: the owner of a request's decoded media, and a server of queries.

The media stage is implicit, has one replica, and every request with media needs the process that decoded them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omni_actors.media.questions import begins
from omni_actors.orchestrator.request import RequestStream
from omni_actors.pipelines.plan import MEDIA_STAGE
from omni_actors.protocol.errors import not_resumable, stage_unavailable
from omni_actors.stages.pool import StagePool
from omni_actors.stages.replica import StageReplica


class MediaLink:
    """The link to the media process of a deployment, which may have none."""

    def __init__(self, pools: Mapping[str, StagePool]) -> None:
        self._pool = pools.get(MEDIA_STAGE)

    def attach(self, record: RequestStream, replicas: Mapping[str, StageReplica]) -> None:
        """Note which incarnation of the process holds the media of a request that is admitted."""
        record.media_incarnation = replicas[MEDIA_STAGE].incarnation

    def check_resumable(self, record: RequestStream, replicas: Mapping[str, StageReplica]) -> None:
        """Raise ``not_resumable`` if the process that had decoded the request's media is gone."""
        if replicas[MEDIA_STAGE].incarnation != record.media_incarnation:
            raise not_resumable(MEDIA_STAGE)

    def discard(self, record: RequestStream) -> None:
        """Let the process free the media of a request that is over; nothing waits for that."""
        assert self._pool is not None
        (process,) = self._pool.replicas
        if process.incarnation == record.media_incarnation:
            process.notify("discard", {"owners": [], "clips": [medium.id for medium in record.request.media]})

    async def query(self, what: str, args: dict[str, Any]) -> Any:
        """Ask the process, and return its answer.

        While the process is being replaced, a query that begins an operation waits, and a query that goes on with an
        operation does not. The caller bounds the wait. Raises the process's typed error, and ``stage_unavailable``
        without a process.
        """
        pool = self._pool
        if pool is None:
            raise stage_unavailable(MEDIA_STAGE)
        (process,) = pool.replicas
        if begins(what, args):
            while pool.replacing and not (process.live and not process.drained):
                await process.changed.park()
            if process.drained:
                raise pool.unavailable()
        return await process.query(what, args, timeout_s=math.inf)
