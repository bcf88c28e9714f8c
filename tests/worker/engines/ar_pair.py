"""Two engines that share the work of one stage: the first computes prompts, the second goes on with them."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import numpy as np
from tests.worker.engines.ar_driver import MAX_STEPS, Collector, assert_idle, hello

from omni_actors.connectors.payload import DeviceTensors, Payload
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import EdgeSpec
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive import AutoregressiveEngine
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter


def half(adapter: AutoregressiveAdapter, role: str, **options: Any) -> AutoregressiveEngine:
    """``connector`` among the options is that of the edge between the two."""
    connector = options.pop("connector", "shared_memory")
    said = hello("", **{**options, "role": role})
    if role == "prefill":
        edge = EdgeSpec(index=0, source="llm-prefill", target="llm", port="kv", kind="kv", connector=connector)
        said.outputs = (edge,)
    engine = AutoregressiveEngine(said)
    engine.attach(adapter)
    return engine


class _First(Collector):
    """The first engine's Outbox: an edge with one credit."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, int] = defaultdict(int)
        self.acked: dict[int, int] = defaultdict(int)
        self.queue: deque[tuple[int, Payload | None, bool]] = deque()

    def ready(self, key: int) -> bool:
        return self.sent[key] - self.acked[key] < 1

    def emit(self, key: int, payload: Payload) -> None:
        assert self.ready(key), "sent without a credit"
        self.sent[key] += 1
        if isinstance(payload.tensors, DeviceTensors):  # as over a link by device: a copy there
            self.queue.append((key, payload.copy(), False))
            return
        # As over any other link: a copy that is read-only.
        tensors = {name: array.copy() for name, array in payload.tensors.items()}
        for array in tensors.values():
            array.flags.writeable = False
        self.queue.append((key, replace(payload, tensors=tensors), False))

    def finish(self, key: int, usage: Usage) -> None:
        super().finish(key, usage)
        self.queue.append((key, None, True))


class _Second(Collector):
    def __init__(self, first: _First) -> None:
        super().__init__()
        self._first = first

    def consumed(self, key: int, port: str) -> None:
        assert port == "kv"
        self._first.acked[key] += 1


class Pair:
    """Drives both, a step of each in turn. ``payloads`` are all that passed, by request."""

    def __init__(self, prefill: AutoregressiveEngine, decode: AutoregressiveEngine) -> None:
        self.prefill = prefill
        self.decode = decode
        self.first = _First()
        self.out = _Second(self.first)
        self.payloads: dict[int, list[Payload]] = defaultdict(list)
        self.open: set[int] = set()

    def admit(self, work: Work) -> None:
        """To both, the consumer first."""
        self.open.add(work.key)
        second = replace(work, ports=frozenset({"kv"}))
        self._guarded(work.key, lambda: self.decode.admit(second))
        if work.key in self.open:
            first = replace(work, visible=False, routed=True, prefix=None)
            self._guarded(work.key, lambda: self.prefill.admit(first))

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> None:
        """Input of the stage: it goes to the first half."""
        self._guarded(key, lambda: self.prefill.feed(key, port, payload, end))

    def turn(self) -> bool:
        """One step of each engine, and what is between them; whether anything moved."""
        moved = self.prefill.runnable and self.prefill.step(self.first)
        moved |= self.deliver()
        moved |= self.decode.runnable and self.decode.step(self.out)
        for key, error in [*self.first.errors.items()]:
            if key in self.open:
                self._end(key, error)
        for key in [key for key in self.open if key in self.out.usage or key in self.out.errors]:
            self.open.discard(key)
            self.prefill.abort(key)
        return moved

    def deliver(self) -> bool:
        """What the first engine sent, to the second."""
        moved = bool(self.first.queue)
        while self.first.queue:
            key, payload, end = self.first.queue.popleft()
            if key not in self.open:
                continue
            if payload is not None:
                self.payloads[key].append(payload)
            self._guarded(key, lambda k=key, p=payload, e=end: self._hand(k, p, e))  # type: ignore[misc]
        return moved

    def run(self, works: list[Work], concurrency: int = 8) -> Collector:
        """All of them, at most so many at a time, to the end. Both engines then hold nothing."""
        waiting = list(reversed(works))
        for _ in range(MAX_STEPS):
            while waiting and len(self.open) < concurrency:
                self.admit(waiting.pop())
            if not self.open and not waiting:
                self.assert_idle()
                return self.out
            assert self.turn(), "requests are open, but nothing moves"
        raise AssertionError(f"not done after {MAX_STEPS} turns")

    def abort(self, key: int) -> None:
        self.open.discard(key)
        self.prefill.abort(key)
        self.decode.abort(key)

    def assert_idle(self) -> None:
        assert_idle(self.prefill)
        assert_idle(self.decode)

    def _hand(self, key: int, payload: Payload | None, end: bool) -> None:
        if self.decode.feed(key, "kv", payload, end) and payload is not None:
            self.first.acked[key] += 1

    def _guarded(self, key: int, call: Any) -> None:
        """As the loop and the orchestrator do it: a request that fails in one stage is aborted in all."""
        try:
            call()
        except OmniError as error:
            self._end(key, error.info)

    def _end(self, key: int, error: ErrorInfo) -> None:
        self.abort(key)
        self.out.errors.setdefault(key, error)


def rows_of(payloads: list[Payload]) -> np.ndarray[Any, Any]:
    """All rows that passed of one request: [layers, 2 * kv_heads, tokens, head_dim]."""
    return np.concatenate([p.tensors["rows"] for p in payloads if "rows" in p.tensors], axis=2)
