"""Streamed pictures: previews, pictures as soon as they are finished, comments meanwhile, and clients that leave."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
import trio
from tests.entrypoints.fakes import Server, Step
from tests.entrypoints.images.painter import FACTS, GENERATIONS, SEED, paint, painter, picture, seen
from tests.entrypoints.images.sse import events_of
from tests.entrypoints.test_middleware import error_of

from omni_actors.entrypoints.openai import keepalive
from omni_actors.entrypoints.openai.images.previews import interval_of
from omni_actors.protocol.errors import stage_failed
from omni_actors.protocol.request import Event, MediaChunk, Request, StepProgress

PARTIAL, COMPLETED = "image_generation.partial_image", "image_generation.completed"


async def streamed(server: Server, **body: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The events and the comments of a streamed answer."""
    response = await server.post(GENERATIONS, {"prompt": "a boat", "stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    return events_of(response.text)


async def test_previews_come_first_then_the_picture_with_its_usage() -> None:
    async with painter() as server:
        events, _ = await streamed(server, partial_images=3)
        assert [event["type"] for event in events] == [PARTIAL] * 3 + [COMPLETED]
        assert [event["partial_image_index"] for event in events[:3]] == [0, 1, 2]
        assert [event["step"] for event in events[:3]] == [2, 4, 6]
        assert {event["size"] for event in events} == {"64x48"}
        assert {event["output_format"] for event in events} == {"png"}
        assert base64.b64decode(events[-1]["b64_json"]) == picture(64, 48, SEED)
        assert events[-1]["usage"]["total_tokens"] == 5 + 12
        assert seen(server.orchestrator.requests[0]).previews == 2
        await server.settled()


async def test_without_previews_there_is_one_event() -> None:
    async with painter() as server:
        events, _ = await streamed(server)
        assert [event["type"] for event in events] == [COMPLETED]
        assert seen(server.orchestrator.requests[0]).previews == 0


async def test_an_interval_gives_every_preview() -> None:
    async with painter() as server:
        events, _ = await streamed(server, preview_interval=1)
        assert [event.get("step") for event in events] == [1, 2, 3, 4, 5, 6, 7, None]


async def test_the_usages_of_n_pictures_add_up_and_each_has_its_index_and_seed() -> None:
    async with painter() as server:
        events, _ = await streamed(server, n=3, partial_images=1, quality="high")
        finished = [event for event in events if event["type"] == COMPLETED]
        assert [(event["index"], event["seed"]) for event in finished] == [(0, SEED), (1, SEED + 1), (2, SEED + 2)]
        whole = (await server.post(GENERATIONS, {"prompt": "a boat", "n": 3})).json()
        assert sum(event["usage"]["total_tokens"] for event in finished) == whole["usage"]["total_tokens"]
        assert [event["partial_image_index"] for event in events if event["type"] == PARTIAL] == [0, 0, 0]
        assert {event["quality"] for event in events} == {"high"}


async def test_a_finished_picture_does_not_wait_for_the_next_one() -> None:
    gate = trio.Event()

    def held(request: Request) -> list[Step]:
        steps = paint(request)
        (first,) = (at for at, it in enumerate(steps) if isinstance(it, MediaChunk) and it.meta["index"] == 0)
        return [*steps[: first + 1], gate, *steps[first + 1 :]]

    async with (
        painter(held) as server,
        server.client.stream("POST", GENERATIONS, json={"prompt": "a", "stream": True, "n": 2}) as response,
    ):
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if COMPLETED in text and text.endswith("\n\n"):
                gate.set()
        events, _ = events_of(text)
        assert [event["index"] for event in events] == [0, 1]


@pytest.mark.parametrize(
    ("count", "steps"), [(count, steps) for count in (1, 2, 3) for steps in (1, 2, 3, 4, 5, 7, 10, 20, 28, 50)]
)
def test_previews_are_as_many_as_asked_for_where_there_are_steps(count: int, steps: int) -> None:
    interval = interval_of(count, steps)
    made = [step for step in range(1, steps) if step % interval == 0]
    assert min(count, steps - 1) <= len(made)
    assert len(made) <= count or interval == 1 or steps < 2 * (count + 1)


class Timed:
    """A request's stream whose events come at given times."""

    def __init__(self, *steps: tuple[float, Event]) -> None:
        self.steps = list(steps)

    async def receive(self) -> Event:
        if not self.steps:
            raise trio.EndOfChannel
        at, event = self.steps[0]
        await trio.sleep(at - trio.current_time() + self.begun)
        del self.steps[0]
        return event

    async def comments(self) -> list[tuple[float, Event | bytes]]:
        """What comes, and when."""
        self.begun = trio.current_time()
        stream: Any = self
        return [(trio.current_time() - self.begun, it) async for it in keepalive.with_comments(stream)]


async def test_progress_and_silence_become_comments(autojump_clock: trio.testing.MockClock) -> None:
    def step(number: int) -> StepProgress:
        return StepProgress(0, 0, number, 8)

    picture = MediaChunk(0, "image", {"index": 0}, b"")
    got = await Timed((0.0, step(1)), (2.0, step(2)), (2.5, step(3)), (27.0, picture)).comments()
    assert got == [
        (2.0, b": step 2 of 8 of picture 0\n\n"),
        (12.0, keepalive.COMMENT),
        (22.0, keepalive.COMMENT),
        (27.0, picture),
    ]


async def test_a_failure_before_the_first_event_has_its_own_status() -> None:
    async with painter(lambda request: [0.0, stage_failed("image")]) as server:
        error_of(await server.post(GENERATIONS, {"prompt": "a boat", "stream": True}), 500)


async def test_a_failure_after_the_first_event_is_an_event_and_no_success() -> None:
    def broken(request: Request) -> list[Step]:
        return [*paint(request)[:2], stage_failed("image")]

    async with painter(broken) as server:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with server.client.stream("POST", GENERATIONS, json={"prompt": "a", "stream": True}) as response:
                async for piece in response.aiter_raw():
                    received += piece
        events, _ = events_of(received.decode())
        assert events[-1]["error"]["code"] == "stage_failed"
        assert COMPLETED not in received.decode()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_the_work(stream: bool) -> None:
    begun = trio.Event()

    def endless(request: Request) -> list[Step]:
        begun.set()
        return [StepProgress(0, 0, 1, 8), trio.Event(), *paint(request)]

    async with painter(endless) as server, trio.open_nursery() as nursery:

        async def ask() -> None:
            await server.post(GENERATIONS, {"prompt": "a boat", "stream": stream})

        nursery.start_soon(ask)
        await begun.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(5):
            await server.orchestrator.idle.wait()
    assert server.orchestrator.cancelled == 1


async def test_facts_that_are_not_known_leave_previews_to_the_usual_number_of_steps() -> None:
    async with painter(facts={**FACTS, "steps": None}) as server:
        await streamed(server, partial_images=3)
        assert seen(server.orchestrator.requests[0]).previews == 7
