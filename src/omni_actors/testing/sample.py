"""A request that a pipeline is tried with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.request import Request


@dataclass(frozen=True)
class Sample:
    """``params`` are the request's sections by name, ``task``, ``inputs`` and ``outputs`` as in
    :class:`~omni_actors.protocol.request.Request`. ``feeds`` are payloads that come from outside by ``stage.port``:
    what the media process would deliver, or a stream of input. Samples with feeds are tried in the test's process
    alone."""

    params: Mapping[str, Any]
    task: str = "chat"
    inputs: tuple[str, ...] = ("text",)
    outputs: tuple[str, ...] = ("text",)
    feeds: Mapping[str, Sequence[Payload]] = field(default_factory=dict)

    def request(self) -> Request:
        """The sample as the orchestrator takes it."""
        return Request(task=self.task, inputs=self.inputs, outputs=self.outputs, params=dict(self.params))
