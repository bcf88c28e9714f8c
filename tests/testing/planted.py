"""Pipelines with one fault each, which the author's kit must find; the first has none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from omni_actors.author import (
    Edge,
    Engine,
    GenerationAdapter,
    OmniError,
    Outbox,
    Payload,
    Piece,
    Pipeline,
    Port,
    Result,
    Stage,
    Task,
    TextDelta,
    Usage,
    Work,
)

_SEEN = itertools.count()


class Words(GenerationAdapter[Work, Work]):
    """Five rows of numbers, each a piece."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def open(self, work: Work) -> tuple[Work, Sequence[Work]]:
        return work, (work,)

    def run(self, items: Sequence[Work]) -> Sequence[Result | OmniError]:
        rows = [np.arange(6, dtype=np.int64).reshape(3, 2) + i for i in range(5)]
        return [Result([Piece(Payload("rows", {}, {"rows": row})) for row in rows]) for _ in items]


class Sum(GenerationAdapter[dict[str, Any], dict[str, Any]]):
    """An adapter that gives the sum of all rows when the input has ended."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def open(self, work: Work) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
        return {"work": work, "sum": 0, "count": 0}, ()

    def feed(self, state: dict[str, Any], port: str, payload: Payload | None, end: bool) -> Sequence[dict[str, Any]]:
        if payload is not None:
            state["sum"] += int(payload.tensors["rows"].sum())
            state["count"] += 1
        return (state,) if end else ()

    def run(self, items: Sequence[dict[str, Any]]) -> Sequence[Result | OmniError]:
        return [self.say(item, items) for item in items]

    def say(self, item: dict[str, Any], items: Sequence[dict[str, Any]]) -> Result:
        return Result([Piece(text=TextDelta(item["work"].key, 0, str(item["sum"]), [], "stop"))])


class CountsPayloads(Sum):
    """A fault: the output depends on the cutting of the input."""

    def say(self, item: dict[str, Any], items: Sequence[dict[str, Any]]) -> Result:
        return Result([Piece(text=TextDelta(item["work"].key, 0, str(item["count"]), [], "stop"))])


class SeesCompany(Sum):
    """A fault: the output depends on other requests of the batch."""

    def say(self, item: dict[str, Any], items: Sequence[dict[str, Any]]) -> Result:
        return Result([Piece(text=TextDelta(item["work"].key, 0, str(len(items)), [], "stop"))])


class Draws(Sum):
    """A fault: the output differs each time."""

    def say(self, item: dict[str, Any], items: Sequence[dict[str, Any]]) -> Result:
        return Result([Piece(text=TextDelta(item["work"].key, 0, str(next(_SEEN)), [], "stop"))])


class BreaksOnInput(Sum):
    """A fault: a wrong payload of one request changes the output of all."""

    broken = False

    def feed(self, state: dict[str, Any], port: str, payload: Payload | None, end: bool) -> Sequence[dict[str, Any]]:
        if payload is not None and "rows" not in payload.tensors:
            self.broken = True
        return super().feed(state, port, payload, end)

    def say(self, item: dict[str, Any], items: Sequence[dict[str, Any]]) -> Result:
        return Result([Piece(text=TextDelta(item["work"].key, 0, str(self.broken), [], "stop"))])


class Own(Engine):
    """An engine that emits its rows, one per step."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self.left: dict[int, int] = {}
        return {}

    def admit(self, work: Work) -> None:
        self.left[work.key] = 5

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        return True

    def abort(self, key: int) -> None:
        self.left.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self.left)

    def step(self, out: Outbox) -> bool:
        ran = False
        for key in [key for key in self.left if self.may(out, key)]:
            ran = True
            self.left[key] -= 1
            out.emit(key, Payload("rows", {}, {"rows": np.full((1, 2), self.left[key], np.int64)}))
            if not self.left[key]:
                del self.left[key]
                out.finish(key, Usage())
        return ran

    def may(self, out: Outbox, key: int) -> bool:
        return out.ready(key)

    def counters(self) -> dict[str, float]:
        return {"requests": len(self.left)}


class Pushes(Own):
    """A fault: the engine emits without a credit."""

    def may(self, out: Outbox, key: int) -> bool:
        return True


class Leaks(Own):
    """A fault: the engine keeps aborted requests."""

    def abort(self, key: int) -> None:
        """Do nothing: the abort was forgotten."""


class Stalls(Own):
    """A fault: the engine never moves."""

    def may(self, out: Outbox, key: int) -> bool:
        return False


def pipeline(first: str = "Words", last: str = "Sum", **changes: Any) -> Pipeline:
    own = first in ("Own", "Pushes", "Leaks", "Stalls")
    target = f"{__name__}:{first}"
    stages = (
        Stage("first", target) if own else Stage("first", "generation", target),
        Stage("last", "generation", f"{__name__}:{last}", (Port("rows", "rows", mode="chunk"),), emits="text"),
    )
    return Pipeline(
        name="planted",
        stages=changes.get("stages", stages),
        edges=(Edge("first", "last.rows", "rows", mode="chunk"),),
        tasks=(Task("chat", {"text": "first"}, {"text": "last"}),),
    )


SOUND = pipeline()
SOUND_ENGINE = pipeline("Own")
COUNTS_PAYLOADS = pipeline(last="CountsPayloads")
SEES_COMPANY = pipeline(last="SeesCompany")
DRAWS = pipeline(last="Draws")
BREAKS_ON_INPUT = pipeline(last="BreaksOnInput")
PUSHES = pipeline("Pushes")
LEAKS = pipeline("Leaks")
STALLS = pipeline("Stalls")
TWICE = pipeline(stages=(Stage("first", "generation", f"{__name__}:Words"),) * 2)
