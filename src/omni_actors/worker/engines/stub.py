"""An engine without a model: what the control plane costs is what remains.

It hands text and bytes on from stage to stage, or streams a fixed count of tokens to every active request per step. The
control plane's benchmark and the tests of faults run on it through the same worker processes as real engines.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work


@dataclass(slots=True)
class _Held:
    work: Work
    texts: list[str] = field(default_factory=list)
    crc: int = 0
    size: int = 0
    pieces: int = 1
    tokens: int = 0


class StubEngine(Engine):
    """Options: ``step_s`` (seconds that a step with work takes), ``load_s`` (seconds that loading takes).

    Section ``stub`` of a request: ``text`` to hand on; ``bytes`` (each piece carries a tensor of so many bytes);
    ``place`` (write them in place instead of handing over an array); ``pieces`` (hand on in so many pieces, one per
    step and credit); ``tokens`` (a visible first stage streams so many instead); and faults, each with the stage's
    name: ``refuse`` (400), ``fail`` (500), ``crash`` (the worker kills itself), ``stall`` (never answers), ``early``
    (ends at its first input, the rest unread). The last stage's text is what came, and ``size:crc32`` of the bytes if
    any came.
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._step_s = float(hello.options.get("step_s", 0.0))
        self._held: dict[int, _Held] = {}
        self._ready: dict[int, _Held] = {}
        self._steps = 0

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        progress("loading nothing", 0.0)
        time.sleep(float(self.hello.options.get("load_s", 0.0)))
        return {}

    def admit(self, work: Work) -> None:
        stub = work.params.get("stub") or {}
        stage = self.hello.stage
        if stub.get("crash") == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        if stub.get("fail") == stage:
            raise stage_failed(stage, "asked to fail")
        if stub.get("refuse") == stage:
            raise invalid_request("asked to refuse", param="stub")
        held = self._held[work.key] = _Held(work)
        if stub.get("stall") == stage:
            return
        if not work.ports:
            held.texts.append(str(stub.get("text", "")))
            held.pieces = int(stub.get("pieces", 1))
            held.tokens = int(stub.get("tokens", 0)) if work.visible else 0
            self._ready[work.key] = held

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        held = self._held[key]
        if payload is not None:
            held.texts.append(payload.meta.get("text", ""))
            for tensor in payload.tensors.values():
                held.crc = zlib.crc32(tensor.data, held.crc)
                held.size += tensor.nbytes
        stub = held.work.params.get("stub") or {}
        if (end or stub.get("early") == self.hello.stage) and stub.get("stall") != self.hello.stage:
            self._ready[key] = held
        return True

    def abort(self, key: int) -> None:
        self._held.pop(key, None)
        self._ready.pop(key, None)

    @property
    def runnable(self) -> bool:
        return bool(self._ready)

    def step(self, out: Outbox) -> bool:
        if self._step_s:
            time.sleep(self._step_s)
        self._steps += 1
        ran = False
        for key, held in list(self._ready.items()):
            if not out.ready(key):
                continue
            ran = True
            if held.tokens:
                held.tokens -= 1
                last = not held.tokens
                out.text(TextDelta(key, 0, "x", [held.tokens], "stop" if last else None))
            else:
                held.pieces -= 1
                last = not held.pieces
                self._hand_on(key, held, out)
            if last:
                out.finish(key, Usage())
                self.abort(key)
        return ran

    def _hand_on(self, key: int, held: _Held, out: Outbox) -> None:
        text = "".join(held.texts)
        stub = held.work.params.get("stub") or {}
        if held.work.visible:
            out.text(TextDelta(key, 0, f"{text} {held.size}:{held.crc}" if held.size else text, [], "stop"))
        if held.work.routed:
            size = int(stub.get("bytes", 0))
            blob = (np.arange(size, dtype=np.uint32) * (held.pieces + 1)).astype(np.uint8)
            meta = {"text": text}
            if size and stub.get("place"):
                payload = out.allocate(key, "text", meta, {"blob": ((size,), "uint8")})
                payload.tensors["blob"][:] = blob
            else:
                payload = Payload("text", meta, {"blob": blob} if size else {})
            out.emit(key, payload)

    def counters(self) -> dict[str, float]:
        return {"running": len(self._held), "steps_total": self._steps}
