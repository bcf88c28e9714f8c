"""The stages behind ``whole.py``: a chat's last words are handed on, a stream's tokens say when they were made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work

PACE_S = 0.05
"""Between two tokens of a stream."""


@dataclass(slots=True)
class _Held:
    work: Work
    text: str = ""
    tokens: int = 0


class ChatEngine(Engine):
    """An engine that hands on the last message.

    With ``max_tokens`` the visible stage streams that number of tokens, :data:`PACE_S` seconds apart and for all its
    requests together, like the steps of an engine.
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._held: dict[int, _Held] = {}
        self._ready: dict[int, _Held] = {}
        self._next = 0.0

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        return {}

    def admit(self, work: Work) -> None:
        held = self._held[work.key] = _Held(work)
        if (prompt := work.params.get("prompt")) is not None:
            held.text = prompt.messages[-1]["content"]
        if (sampling := work.params.get("sampling")) is not None:
            held.tokens = sampling.max_tokens or 0
        if not work.ports:
            self._ready[work.key] = held

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self._held[key]
        if payload is not None:
            held.text += payload.meta["text"]
        if end:
            self._ready[key] = held
        return True

    def abort(self, key: int) -> None:
        self._held.pop(key, None)
        self._ready.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self._ready)

    def step(self, out: Outbox) -> bool:
        ready = [(key, held) for key, held in self._ready.items() if out.ready(key)]
        if any(held.tokens for _, held in ready):
            time.sleep(max(0.0, self._next - time.monotonic()))
            self._next = time.monotonic() + PACE_S
        for key, held in ready:
            if held.tokens > 1:
                held.tokens -= 1
                out.text(TextDelta(key, 0, f"@{time.monotonic_ns()};", [1]))
                continue
            if held.work.visible:
                out.text(TextDelta(key, 0, held.text, [1], "stop"))
            if held.work.routed:
                out.emit(key, Payload("text", {"text": held.text}))
            out.finish(key, Usage(completion_tokens=1))
            self.abort(key)
        return bool(ready)
