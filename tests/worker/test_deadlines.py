"""A worker keeps a request's deadline by itself, before each step: the serving process may be slow to abort."""

from __future__ import annotations

import time

import pytest
import trio
from tests.worker.test_boundary import Raw, hello

from omni_actors.actors.process import open_launcher, python_module
from omni_actors.protocol.codec import frame, raw
from omni_actors.protocol.frames import Ready, Step, Submit
from omni_actors.worker.deadlines import RequestDeadlines


def submit(key: int, deadline_s: float | None, **stub: object) -> bytes:
    return frame(Submit(key, f"req-{key}", {"stub": raw(stub)}, (), (), True, deadline_s=deadline_s))


async def test_a_request_past_its_deadline_is_not_stepped_any_more() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello(options={"step_s": 0.02}))
        await worker.until(Ready)
        worker.send(submit(1, 0.3, tokens=100_000))
        worker.send(submit(2, None, tokens=40))
        worker.send(submit(3, 0.0, tokens=5))
        failed: dict[int, str | None] = {}
        texts: dict[int, int] = {}
        done: set[int] = set()
        released: set[int] = set()
        with trio.fail_after(10):
            while released != {1, 2, 3}:
                step = await worker.until(Step)
                assert isinstance(step, Step)
                failed |= {it.key: it.error.code for it in step.failed}
                for delta in step.texts:
                    assert delta.key not in failed
                    texts[delta.key] = texts.get(delta.key, 0) + 1
                done |= {it.key for it in step.done}
                released |= set(step.released)
        assert failed == {1: "deadline_exceeded", 3: "deadline_exceeded"}
        assert done == {2}
        assert texts[2] == 40
        assert 1 <= texts[1] < 40
        assert 3 not in texts


def test_a_passed_deadline_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadlines = RequestDeadlines()
    requests = {1, 2, 3}
    for key, budget in ((1, 5.0), (2, 1.0), (3, 9.0)):
        deadlines.add(key, budget, requests, 3)
    assert deadlines.passed() == []
    now = 105.0
    assert deadlines.passed() == [2, 1]
    assert deadlines.passed() == []
    now = 109.0
    assert deadlines.passed() == [3]


def test_deadlines_of_finished_requests_are_removed() -> None:
    deadlines = RequestDeadlines()
    requests: set[int] = set()
    for key in range(10_000):
        requests = {key, key - 1}
        deadlines.add(key, 600.0, requests, 2)
        assert len(deadlines) < 100
