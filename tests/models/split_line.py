"""A line whose thinker is split in two: an edge of kind "kv" has one credit, which its consumer gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.models.omni.line import GREEDY, Answer, Ask, Line, _Outbox

from omni_actors.connectors.payload import Payload
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.plan import PREFILL
from omni_actors.pipelines.planning.disaggregate import split
from omni_actors.protocol.params import Sampling
from omni_actors.worker.engine import Work

FIRST = "thinker" + PREFILL


class SplitLine(Line):
    """``pipeline`` with its thinker in two halves."""

    def __init__(self, pipeline: Pipeline, folder: Path, options: Mapping[str, Mapping[str, Any]]) -> None:
        self.unread: Counter[int] = Counter()
        super().__init__(split(pipeline, ["thinker"]), folder, options)

    def _admit(self, key: int, ask: Ask) -> None:
        self.answers[key] = Answer()
        route = {FIRST, "thinker"}
        if ask.media:
            route.add("encoder")
        if ask.speech is not None:
            route |= self.stages.keys() - {"encoder"}
        self._routes[key], self._busy[key] = route, set(route)
        sections: dict[str, Any] = {"prompt": ask.prompt, "sampling": Sampling(**GREEDY, max_tokens=ask.max_tokens)}
        if ask.speech is not None:
            sections["speech"] = ask.speech
        for name in reversed([name for name in self.stages if name in route]):
            stage = self.stages[name]
            fed = {port for source in route for target, port in self.targets[source] if target == name}
            ports = frozenset({"media"} if name == "encoder" else fed)
            params = {section: sections[section] for section in stage.sections if section in sections}
            routed = any(target in route for target, _ in self.targets[name])
            work = Work(key, f"r{key}", params, ports, visible=name == "thinker", routed=routed or name == self.last)
            self._guard(key, name, lambda name=name, work=work: self.engines[name].admit(work))  # type: ignore[misc]
        for payload in ask.media:
            self._deliver(key, "encoder", "media", payload)
        if ask.media:
            self._deliver(key, "encoder", "media", None)

    def _outbox(self, stage: str) -> _Outbox:
        return _Credits(self, stage)

    def _deliver(self, key: int, stage: str, port: str, payload: Payload | None) -> None:
        if port != "kv" or payload is None:
            super()._deliver(key, stage, port, payload)
            return
        self.unread[key] += 1

        def feed() -> None:
            if key in self._busy and self.engines[stage].feed(key, port, payload, False):
                self.unread[key] -= 1

        self._mail.append(feed)


@dataclass(frozen=True)
class _Credits(_Outbox):
    line: SplitLine

    def ready(self, key: int) -> bool:
        return self.stage != FIRST or not self.line.unread[key]

    def consumed(self, key: int, port: str) -> None:
        if port == "kv":
            self.line.unread[key] -= 1
