"""A worker without work gives back the memory kept for reuse: once, and again when its engine asks for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.limits import REST_AFTER_S
from omni_actors.worker import rest
from omni_actors.worker.rest import Rest


class Engine:
    def __init__(self) -> None:
        self.rests: list[float] = []
        self.again: list[float | None] = []

    def rest(self) -> float | None:
        self.rests.append(now.at)
        return self.again.pop(0) if self.again else None


class Now:
    at = 0.0


now = Now()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    now.at = 100.0
    monkeypatch.setattr(rest, "time", SimpleNamespace(monotonic=lambda: now.at))
    return Engine()


def resting(engine: Engine, *arenas: Arena, **limits: int) -> Rest:
    hello = Hello(version=1, stage="a", replica=0, incarnation=1, engine="", adapter="", limits=limits)
    return Rest(hello, cast(Any, engine), *arenas)


def test_memory_is_given_back_once_after_work(engine: Engine) -> None:
    it = resting(engine)
    it.turn(idle=True)
    assert it.in_s is None
    it.worked = True
    it.turn(idle=False)
    assert it.in_s == REST_AFTER_S.default
    now.at += REST_AFTER_S.default - 1
    it.turn(idle=True)
    assert engine.rests == []
    now.at += 1
    assert it.in_s == 0
    it.turn(idle=False)  # somebody waits for an answer
    assert engine.rests == []
    it.turn(idle=True)
    it.turn(idle=True)
    assert engine.rests == [110.0]
    assert it.in_s is None


def test_memory_is_given_back_again_when_the_engine_asks(engine: Engine) -> None:
    engine.again = [300.0, None]
    it = resting(engine, rest_after_s=2)
    it.worked = True
    it.turn(idle=True)
    for _ in range(2):
        now.at += it.in_s or 0
        it.turn(idle=True)
    assert engine.rests == [102.0, 402.0]
    assert it.in_s is None


def test_empty_slabs_are_closed(engine: Engine) -> None:
    arena = Arena()
    used = arena.allocate(1 << 20)
    arena.release(arena.allocate(16 << 20))
    it = resting(engine, arena)
    it.worked = True
    it.turn(idle=True)
    now.at += REST_AFTER_S.default
    it.turn(idle=True)
    assert arena.bytes == used.slab.slot_bytes * used.slab.slots
    arena.close()
