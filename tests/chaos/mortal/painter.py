"""The stub's painter that dies. Its worker starts in a moment."""

from __future__ import annotations

from typing import Any

from tests.chaos.mortal import meet

from omni_actors.models.stub.painter import Painter
from omni_actors.worker.engine import Outbox, Work


class Mortal(Painter):
    """The painter."""

    def admit(self, work: Work) -> None:
        meet(work.request_id, self.hello.incarnation, "encode")
        super().admit(work)

    def _advance(self, key: int, held: Any, index: int, out: Outbox) -> bool:
        step = held.done[index]
        place = f"step {step}" if step < held.steps else f"decode {index}"
        meet(held.work.request_id, self.hello.incarnation, place)
        return super()._advance(key, held, index, out)
