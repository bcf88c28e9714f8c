"""An engine without a model: what the control plane costs is what remains.

It echoes text from stage to stage, or streams a fixed count of tokens to every active request per step. The control
plane's benchmark and the tests of faults run on it through the same worker processes as real engines.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.protocol.errors import invalid_request, stage_failed
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work


class StubEngine(Engine):
    """Options: ``step_s`` (seconds that a step with work takes), ``load_s`` (seconds that loading takes).

    Section ``stub`` of a request: ``text`` to echo, ``tokens`` (stream so many instead of echoing), ``fail`` (stage
    name to fail in), ``crash`` (stage name whose worker kills itself), ``stall`` (stage name that never answers).
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._step_s = float(hello.options.get("step_s", 0.0))
        self._works: dict[int, Work] = {}
        self._texts: dict[int, str] = {}
        self._ready: dict[int, None] = {}
        self._left: dict[int, int] = {}
        self._stalled: set[int] = set()
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
        self._works[work.key] = work
        if stub.get("stall") == stage:
            self._stalled.add(work.key)
        elif stub.get("tokens") and work.visible:
            self._left[work.key] = int(stub["tokens"])
        elif not work.ports:
            self._texts[work.key] = str(stub.get("text", ""))
            self._ready[work.key] = None

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        if payload is not None:
            self._texts[key] = self._texts.get(key, "") + payload.meta.get("text", "")
        if end and key not in self._stalled:
            self._ready[key] = None
        return True

    def abort(self, key: int) -> None:
        self._forget(key)

    @property
    def runnable(self) -> bool:
        return bool(self._ready or self._left)

    def step(self, out: Outbox) -> bool:
        if self._step_s:
            time.sleep(self._step_s)
        self._steps += 1
        ran = False
        for key in list(self._ready):
            if not out.ready(key):
                continue
            ran = True
            work = self._works[key]
            text = self._texts.get(key, "")
            if work.visible:
                out.text(TextDelta(key, 0, text, [], "stop"))
            if work.routed:
                out.emit(key, text_payload(text))
            out.finish(key, Usage())
            self._forget(key)
        for key, left in list(self._left.items()):
            ran = True
            last = left <= 1
            out.text(TextDelta(key, 0, "x", [left], "stop" if last else None))
            if last:
                out.finish(key, Usage(completion_tokens=1))
                self._forget(key)
            else:
                self._left[key] = left - 1
        return ran

    def counters(self) -> dict[str, float]:
        return {"running": len(self._works), "steps_total": self._steps}

    def _forget(self, key: int) -> None:
        self._works.pop(key, None)
        self._texts.pop(key, None)
        self._ready.pop(key, None)
        self._left.pop(key, None)
        self._stalled.discard(key)
