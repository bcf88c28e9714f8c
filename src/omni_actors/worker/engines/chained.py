"""A chain of engines in one worker: each engine takes the output of the one before, and together they are one engine.

A chain is for stages that are too small for workers of their own. Nothing is copied or sent between the engines. One
step of the loop runs one iteration of each engine in turn, so that a frame of the first engine becomes sound in the
same step.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.moved import moved_names
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Engine, Outbox, Work
from omni_actors.worker.engines.oneshot.outputs import add_usage
from omni_actors.worker.isolation import Faults
from omni_actors.worker.named import class_named, thing_named, unfit
from omni_actors.worker.returned import flag_of, kind_of, usage_problem, wrong

log = logging.getLogger(__name__)

__getattr__ = moved_names(__name__, {"Link": "omni_actors.worker.engines.chained:ChainLink"})

CAPACITY = 64
"""The number of payloads of one request that may wait for an engine, before the engine in front pauses."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One engine of a chain.

    ``name`` is the stage name for the engine; seeded draws depend on the name. ``engine`` is a kind, which the worker's
    platform implements, or a dotted name; ``adapter`` is a dotted name. The first engine of a request has the stage's
    own ports; ``port`` of every other engine takes the payloads of the engine before. Requests without input on a port
    skip ``optional`` engines.
    """

    name: str
    engine: str
    adapter: str
    port: str = ""
    optional: bool = False


@dataclass(slots=True)
class _Request:
    """A request in the chain.

    ``begin`` is the place of the request's first engine. ``waiting`` are payloads by the place of their engine;
    ``usage`` is the usage of finished engines.
    """

    work: Work
    begin: int
    waiting: list[int]
    usage: Usage = field(default_factory=Usage)


class ChainedEngine(Engine):
    """The engine of a chain, the sequence of :class:`ChainLink` objects named by ``hello.adapter``.

    Each engine gets all options. The output of the last engine leaves the worker.
    """

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._links: tuple[ChainLink, ...] = links_named(hello.adapter)
        self._engines: list[Engine] = []
        platform: OmniPlatform = pkgutil.resolve_name(hello.platform)()
        for link in self._links:
            engine = link.engine if ":" in link.engine else platform.engine_for(link.engine)
            own = msgspec.structs.replace(hello, stage=link.name, engine=engine, adapter=link.adapter)
            made = class_named(engine, Engine, "engine")(own)
            made.compiling = lambda: self.compiling()
            self._engines.append(made)
        self._faults = Faults(hello)
        self._requests: dict[int, _Request] = {}
        self._failed: dict[int, ErrorInfo] = {}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for engine in self._engines:
            info |= engine.load(progress)
        return info

    # ---- requests

    def admit(self, work: Work) -> None:
        begin = next(place for place, link in enumerate(self._links) if work.ports or not link.optional)
        last = len(self._links) - 1
        try:
            for place in range(begin, len(self._links)):
                ports = work.ports if place == begin else frozenset({self._links[place].port})
                visible, routed = (work.visible, work.routed) if place == last else (False, True)
                delivered = work.delivered if place == last else 0
                own = replace(work, ports=ports, visible=visible, routed=routed, prefix=None, delivered=delivered)
                self._engines[place].admit(own)
        except BaseException:
            for engine in self._engines:
                engine.abort(work.key)
            raise
        self._requests[work.key] = _Request(work, begin, [0] * len(self._links))

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> bool:
        return self._engines[self._requests[key].begin].feed(key, port, payload, end)

    def abort(self, key: int) -> None:
        if self._requests.pop(key, None) is not None:
            for engine in self._engines:
                engine.abort(key)

    # ---- one step

    @property
    def foreign(self) -> bool:
        return super().foreign or any(engine.foreign for engine in self._engines)

    @property
    def runnable(self) -> bool:
        return any(engine.runnable for engine in self._engines)

    def step(self, out: Outbox) -> bool:
        ran = False
        for place, engine in enumerate(self._engines):
            if engine.runnable:
                ran |= engine.step(_Place(self, place, out))
            # Abort after the step: an engine must not forget a request in the middle of its own step.
            while self._failed:
                key, error = self._failed.popitem()
                self.abort(key)
                out.fail(key, error)
        return ran

    def ready(self, place: int, key: int, out: Outbox) -> bool:
        """Whether an engine may continue with a request: there is room for its output."""
        if place + 1 == len(self._links):
            return out.ready(key)
        request = self._requests.get(key)
        return request is not None and request.waiting[place + 1] < CAPACITY

    def hand_on(self, place: int, key: int, payload: Payload | None, end: bool) -> None:
        """Hand a payload on to the next engine."""
        request = self._requests.get(key)
        if request is None or key in self._failed:
            return
        try:
            engine = self._engines[place + 1]
            consumed = engine.feed(key, self._links[place + 1].port, payload, end)
            if not flag_of(engine, "feed", consumed, "whether the payload is consumed"):
                request.waiting[place + 1] += payload is not None
        except Exception as error:
            self._failed[key] = self._faults.explain(error, request.work.request_id)

    def consumed(self, place: int, key: int, port: str, out: Outbox) -> None:
        request = self._requests.get(key)
        if request is None:
            return
        if place == request.begin:
            out.consumed(key, port)
        else:
            request.waiting[place] -= 1

    def finish(self, place: int, key: int, usage: Usage, out: Outbox) -> None:
        request = self._requests.get(key)
        if request is None:
            return
        if (problem := usage_problem(usage)) is not None:
            error = wrong(self._engines[place], "step", f"{problem[0]} as usage", problem[1])
            self.fail(key, self._faults.explain(error, request.work.request_id))
            return
        request.usage = add_usage(request.usage, usage)
        if place + 1 < len(self._links):
            self.hand_on(place, key, None, True)
        else:
            del self._requests[key]
            out.finish(key, request.usage)

    def fail(self, key: int, error: ErrorInfo) -> None:
        if key in self._requests:
            self._failed.setdefault(key, error)

    # ---- the rest

    def counters(self) -> dict[str, float]:
        """Return the gauge ``requests``, and each engine's counters under the engine's name and an underscore."""
        found: dict[str, float] = {"requests": len(self._requests)}
        for link, engine in zip(self._links, self._engines, strict=True):
            found |= {f"{link.name}_{name}": value for name, value in engine.counters().items()}
        return found

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def links_named(dotted: str) -> tuple[ChainLink, ...]:
    """Return the chain with the dotted name of a sequence of links. Raises :class:`OmniError` for any other object."""
    found = thing_named(dotted, "adapter")
    if not isinstance(found, Sequence) or not found or not all(isinstance(it, ChainLink) for it in found):
        raise unfit("adapter", dotted, f"is {kind_of(found)}, and not a sequence of ChainLink")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Place:
    """The outbox of one engine of the chain."""

    chain: ChainedEngine
    place: int
    out: Outbox

    def ready(self, key: int) -> bool:
        return self.chain.ready(self.place, key, self.out)

    def text(self, delta: TextDelta) -> None:
        self.out.text(delta)

    def media(self, chunk: MediaChunk) -> None:
        self.out.media(chunk)

    def progress(self, progress: StepProgress) -> None:
        self.out.progress(progress)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        """Drop the entry, since a chain is computed again as a whole."""

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        if self._last:
            return self.out.allocate(key, kind, meta, specs)
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        if self._last:
            self.out.emit(key, payload)
        else:
            self.chain.hand_on(self.place, key, payload, False)

    def consumed(self, key: int, port: str) -> None:
        self.chain.consumed(self.place, key, port, self.out)

    def finish(self, key: int, usage: Usage) -> None:
        self.chain.finish(self.place, key, usage, self.out)

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.chain.fail(key, error)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self.out.reply(query, value, error)

    @property
    def _last(self) -> bool:
        return self.place + 1 == len(self.chain._links)
