"""What an observer of a request is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import Event

from .spine import stub, stub_orchestrator


@dataclass
class Observed:
    """An observer that keeps what it is told, in order."""

    calls: list[str] = field(default_factory=list)

    def admitted(self) -> None:
        self.calls.append("admitted")

    def received(self, event: Event) -> None:
        self.calls.append(type(event).__name__)

    def failed(self) -> None:
        self.calls.append("failed")

    def left(self) -> None:
        self.calls.append("left")


async def test_a_request_that_completes_is_observed_from_its_admission_to_its_end() -> None:
    async with stub_orchestrator() as orchestrator:
        observed = Observed()
        async with orchestrator.open(stub("tokens", tokens=3), observed) as stream:
            assert observed.calls == ["admitted"]
            first = await stream.peek()
            assert await stream.peek() is await stream.receive() is first
            async for _event in stream:
                pass
        assert observed.calls[0] == "admitted"
        assert observed.calls[-2:] == ["Completed", "left"]
        assert set(observed.calls[1:-2]) == {"TextDelta"}


async def test_of_the_text_that_a_callback_consumes_the_first_delta_is_observed() -> None:
    async with stub_orchestrator() as orchestrator:
        observed = Observed()
        async with orchestrator.open(stub("tokens", tokens=200), observed) as stream:
            stream.set_text_callback(lambda delta: delta.finish_reason is None)
            async for _event in stream:
                pass
        received = [call for call in observed.calls if call == "TextDelta"]
        assert 1 <= len(received) < 200


async def test_a_refused_request_is_observed_as_failed() -> None:
    async with stub_orchestrator() as orchestrator:
        observed = Observed()
        with pytest.raises(OmniError):
            async with orchestrator.open(stub("nothing"), observed):
                pass
        assert observed.calls == ["failed", "left"]


async def test_a_failure_is_observed_when_the_caller_is_told() -> None:
    async with stub_orchestrator() as orchestrator:
        observed = Observed()
        with pytest.raises(OmniError):
            async with orchestrator.open(stub("tokens", deadline_s=0.2, tokens=1_000_000), observed) as stream:
                async for _event in stream:
                    pass
        assert observed.calls[0] == "admitted"
        assert "failed" in observed.calls
        assert observed.calls[-1] == "left"


async def test_a_request_that_is_left_is_observed_as_neither_completed_nor_failed() -> None:
    async with stub_orchestrator() as orchestrator:
        observed = Observed()
        with trio.CancelScope() as scope:
            async with orchestrator.open(stub("tokens", tokens=1_000_000), observed) as stream:
                await stream.receive()
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert observed.calls == ["admitted", "TextDelta", "left"]
