"""What a worker is told of a request, in each attempt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from omni_actors.orchestrator.estimate import tokens_of
from omni_actors.orchestrator.submission import sections_of, submits_of
from omni_actors.protocol.codec import FrameReader
from omni_actors.protocol.frames import Down, Submit
from omni_actors.protocol.params import ImageGeneration, Sampling
from omni_actors.protocol.request import Request


def submit_of(record: Any, key: int, budget_s: float) -> Submit:
    """The frame for the only stage of a request."""
    stage = SimpleNamespace(name="image")
    part = SimpleNamespace(stage=stage, outputs=(), tcp_inputs=(), sections=("image",), ports=(), visible=False)
    graph = cast(Any, SimpleNamespace(parts=(part,)))
    ((_, data),) = submits_of(record, key, graph, {"image": cast(Any, None)}, budget_s)
    (frame,) = FrameReader[Down](Down, 1 << 20).feed(data)
    assert isinstance(frame, Submit)
    return frame


def record_of(request: Request) -> Any:
    return SimpleNamespace(request=request, sections=sections_of(request), ledgers={}, id="r")


def test_priority_deadline_and_one_seed_reach_every_attempt() -> None:
    record = record_of(Request(task="image", params={"image": ImageGeneration(n=3)}, priority=-7))
    first, second = submit_of(record, 1, 12.5), submit_of(record, 2, 3.25)
    assert (first.priority, first.deadline_s, second.deadline_s) == (-7, 12.5, 3.25)
    seeds = [msgspec.msgpack.decode(it.params["image"], type=ImageGeneration).seed for it in (first, second)]
    assert seeds[0] == seeds[1]
    assert seeds[0] is not None
    assert 0 <= seeds[0] < 1 << 32


def test_a_seed_is_drawn_for_each_request_and_kept_where_it_is_given() -> None:
    def seed(given: int | None) -> int | None:
        found = sections_of(
            Request(task="image", params={"image": ImageGeneration(seed=given), "sampling": Sampling()})
        )
        return msgspec.msgpack.decode(found["image"], type=ImageGeneration).seed

    assert seed(0) == 0
    assert seed(5) == 5
    assert len({seed(None) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("image", "options", "tokens"),
    [
        (ImageGeneration(n=2, steps=10, width=256, height=512), {"steps": None}, 2 * 10 * 512),
        (ImageGeneration(width=512, height=512), {"steps": 4}, 4 * 1024),
        (ImageGeneration(steps=3), {"steps": 4}, 3 * 4096),
        (ImageGeneration(), {"steps": None}, 4096),
        (ImageGeneration(n=3, steps=50), {}, 3),
        (ImageGeneration(steps=2, width=8, height=8), {"steps": None}, 2),
    ],
)
def test_the_cost_of_a_picture_is_its_steps_times_its_latent_tokens(
    image: ImageGeneration, options: dict[str, Any], tokens: int
) -> None:
    """A stage that writes files, and has no steps, counts pictures."""
    part = SimpleNamespace(sections=("image",), stage=SimpleNamespace(options=options))
    request = Request(task="image", params={"image": image})
    assert tokens_of(request, cast(Any, part)) == tokens
