"""The table of the requests in the diffusion engine: how they begin, what they send, and how they end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.checks import OutputError, check_payload
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.diffusion.adapter import DENOISE, ENCODE, DiffusionAdapter
from omni_actors.worker.engines.diffusion.cursor import Cursor, Phase
from omni_actors.worker.engines.diffusion.fairness import Fairness
from omni_actors.worker.engines.diffusion.memory import MemoryBudget
from omni_actors.worker.engines.diffusion.request import PictureRequest
from omni_actors.worker.isolation import Faults

log = logging.getLogger(__name__)

COUNTERS = (
    *("pictures", "picture_steps", "skipped_steps", "forwards", "rows", "encodes", "decodes", "previews"),
    *("finished", "failures", "aborted", "out_of_memory"),
)
"""Names of the engine's counters, without ``_total``."""


class PictureTable:
    """The requests in the engine, the pictures that have work to do, and the payloads that wait for a credit.

    Args:
        adapter: The family's adapter.
        faults: The meaning of exceptions on this device.
        fairness: The accounts of the pictures.
        memory: The memory of the pictures.
    """

    def __init__(self, adapter: DiffusionAdapter, faults: Faults, fairness: Fairness, memory: MemoryBudget) -> None:
        self.adapter = adapter
        self.faults = faults
        self.fairness = fairness
        self.memory = memory
        self.requests: dict[int, PictureRequest] = {}
        self.active: dict[Cursor, None] = {}
        """The cursors with work to do. Of a request that is to be encoded, the first stands for all."""
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.forget: list[Callable[[Sequence[Cursor]], None]] = []
        """Functions to call with cursors that get no more work."""
        self._leaving: dict[int, PictureRequest] = {}
        self._failed_in_a_row = Counter[str]()

    @property
    def runnable(self) -> bool:
        """Whether a picture has work to do, or something waits to leave."""
        return bool(self.active or self._leaving)

    @property
    def first_phase(self) -> Phase:
        """The phase of a cursor whose input is complete."""
        parts = self.adapter.parts
        return Phase.ENCODE if ENCODE in parts else Phase.DENOISE if DENOISE in parts else Phase.DECODE

    # ---- begin

    def enter(self, request: PictureRequest) -> None:
        """Take a request in, whose cursors wait for input."""
        self.requests[request.work.key] = request
        for cursor in request.cursors:
            cursor.phase = Phase.INPUT
            self.fairness.enter(cursor)

    def begin(self, request: PictureRequest, cursors: Sequence[Cursor]) -> None:
        """Let cursors of a request work, whose input is complete."""
        phase = self.first_phase
        for cursor in cursors:
            cursor.phase = phase
        for cursor in cursors[:1] if phase is Phase.ENCODE else cursors:
            self.active[cursor] = None

    # ---- output

    def send(self, request: PictureRequest, payload: Payload, out: Outbox) -> None:
        """Send a payload as soon as the request has a credit."""
        check_payload(payload, self.adapter.tensors.get(payload.kind, {}))
        if request.leaving or not out.ready(request.work.key):
            request.leaving.append(payload)
            self._leaving[request.work.key] = request
        else:
            out.emit(request.work.key, payload)

    def flush(self, out: Outbox) -> bool:
        """Send the payloads that can leave now, and finish the requests without any more; return whether anything
        left."""
        moved = False
        for key, request in list(self._leaving.items()):
            while request.leaving and out.ready(key):
                out.emit(key, request.leaving.popleft())
                moved = True
            if not request.leaving:
                del self._leaving[key]
                moved |= self.finish(request, out)
        return moved

    # ---- ends

    def done(self, cursor: Cursor) -> None:
        """End a picture that has left."""
        self._end([cursor])

    def finish(self, request: PictureRequest, out: Outbox) -> bool:
        """Finish a request if it is drained; return whether it was."""
        if not request.drained:
            return False
        self.totals["finished"] += 1
        self.remove(request)
        out.finish(request.work.key, request.usage)
        return True

    def drained(self, request: PictureRequest) -> None:
        """Let the next step finish a request, if the request is drained."""
        if request.drained:
            self._leaving[request.work.key] = request

    def fail(self, request: PictureRequest, error: Exception, out: Outbox) -> None:
        """Fail a request alone."""
        self.give_up(request)
        out.fail(request.work.key, self.faults.explain(error, request.work.request_id))

    def give_up(self, request: PictureRequest) -> None:
        """Remove a request that has failed."""
        self.totals["failures"] += 1
        self.remove(request)

    def remove(self, request: PictureRequest) -> None:
        """Remove a request with all that it holds, however it ended."""
        self.requests.pop(request.work.key, None)
        self._leaving.pop(request.work.key, None)
        request.leaving.clear()
        self._end(request.cursors)

    def _end(self, cursors: Sequence[Cursor]) -> None:
        ended = [cursor for cursor in cursors if not cursor.over]
        for cursor in ended:
            cursor.phase = Phase.DONE
            self.active.pop(cursor, None)
            self.memory.release(cursor)
            self.fairness.leave(cursor)
        for forget in self.forget:
            forget(ended)
        self.close(ended)

    def close(self, cursors: Sequence[Cursor]) -> None:
        """Let the adapter close cursors, and drop their tensors."""
        for cursor in cursors:
            try:
                self.adapter.close(cursor)
            except Exception:
                log.exception("a picture's state did not close", extra={"request": cursor.work.request_id})
            release(cursor)

    # ---- whether the model is broken

    def succeeded(self, method: str) -> None:
        """Note that a call of a method of the adapter succeeded."""
        self._failed_in_a_row.pop(method, None)

    def suspect(self, method: str, error: Exception) -> None:
        """Note a call of which nothing succeeded; find out, after two in a row, whether the model is broken. Raises
        :class:`~omni_actors.worker.isolation.BrokenModel`."""
        if isinstance(error, OmniError | OutputError):
            return
        self._failed_in_a_row[method] += 1
        if self._failed_in_a_row[method] > 1:
            self.faults.self_test(self.adapter.prove, error)


def release(cursor: Cursor) -> None:
    """Drop the tensors of a cursor: whoever still refers to the cursor keeps none alive."""
    cursor.conditioning = cursor.latents = cursor.scheduler = cursor.generator = None
    cursor.restoring = None
    cursor.timesteps = ()
    cursor.inputs = {}
    cursor.state = {}
