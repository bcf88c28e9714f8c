"""Two stages with returns against their contracts: ``first`` is an adapter of the one-shot engine, ``own`` an engine of
its own. A request's section ``line`` names its ``fault``; a request without a fault is answered "fine"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.chained import ChainLink
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.outputs import Piece, Result


class First(GenerationAdapter[Work, Work]):
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def open(self, work: Work) -> tuple[Work, Sequence[Work]]:
        return work, (work,)

    def run(self, items: Sequence[Work]) -> Sequence[Result | OmniError]:
        return [self._result(work.params["line"].get("fault")) for work in items]

    def _result(self, fault: str | None) -> Any:
        piece = Piece(text_payload("fine"))
        match fault:
            case "a piece for pieces":
                return Result(piece)  # type: ignore[arg-type]
            case "nothing for pieces":
                return Result(None)  # type: ignore[arg-type]
            case "nothing as usage":
                return Result([piece], None)  # type: ignore[arg-type]
            case "words in usage":
                return Result([piece], Usage(completion_tokens="many"))  # type: ignore[arg-type]
            case "another kind":
                return Result([Piece(Payload("codes", {"text": "fine"}))])
            case "keys that are no names":
                return Result([Piece(Payload("text", {1: "fine"}))])  # type: ignore[dict-item]
        return Result([piece])


class Between:
    def feed(self, payload: Payload | None, end: bool) -> Any:
        return [] if payload is None else [payload]


class Own(Engine):
    """An engine that returns its input."""

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        self._held: dict[int, Work] = {}
        self._ready: dict[int, str] = {}
        return {}

    def admit(self, work: Work) -> None:
        self._held[work.key] = work

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        fault = self._held[key].params["line"].get("fault", "")
        if fault == "nothing from feed":
            return None  # type: ignore[return-value]
        self._ready[key] = fault
        return True

    def abort(self, key: int) -> None:
        self._held.pop(key, None)
        self._ready.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self._ready)

    def step(self, out: Outbox) -> bool:
        for key, fault in self._ready.items():
            out.text(TextDelta(key, 0, 5 if fault == "a number as text" else "fine", []))  # type: ignore[arg-type]
            if fault == "words as an error":
                out.fail(key, "words")  # type: ignore[arg-type]
            out.finish(key, None if fault == "no usage at the end" else Usage())  # type: ignore[arg-type]
            del self._held[key]
        self._ready.clear()
        return True


CHAIN = (ChainLink("own", f"{__name__}:Own", "", "text"),)
"""The engine ``own``, driven by an engine of this package."""

PIPELINE = Pipeline(
    name="wrong",
    stages=(
        Stage("first", "generation", f"{__name__}:First", sections=("line",)),
        Stage("own", f"{__name__}:Own", "", (Port("text", "text", mode="chunk"),), sections=("line",), emits="text"),
    ),
    edges=(Edge("first", "own.text", "text", mode="chunk"),),
    tasks=(Task("chat", {"text": "first"}, {"text": "own"}),),
)
