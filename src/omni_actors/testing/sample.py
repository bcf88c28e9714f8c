"""Sample requests for the tests of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.request import Request


@dataclass(frozen=True)
class Sample:
    """A request for the tests of a pipeline.

    Args:
        params: The request's sections by name.
        task: As in :class:`~omni_actors.protocol.request.Request`, like ``inputs`` and ``outputs``.
        inputs: The modalities of the input.
        outputs: The modalities of the output.
        feeds: Payloads from outside by ``stage.port``: the delivery of the media process, or a stream of input. Samples
            with feeds are tried in the test's process alone.
    """

    params: Mapping[str, Any]
    task: str = "chat"
    inputs: tuple[str, ...] = ("text",)
    outputs: tuple[str, ...] = ("text",)
    feeds: Mapping[str, Sequence[Payload]] = field(default_factory=dict)

    def request(self) -> Request:
        """Return the sample as a request to the orchestrator."""
        return Request(task=self.task, inputs=self.inputs, outputs=self.outputs, params=dict(self.params))
