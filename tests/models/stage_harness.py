"""One stage of a pipeline as the worker's loop drives it, without the loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_actors.connectors.payload import Payload, TensorSpecs, blank_payload
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot import GenerationEngine


@dataclass
class Kept:
    """An outbox without limits that keeps an engine's output, in order."""

    texts: list[TextDelta] = field(default_factory=list)
    media_chunks: list[MediaChunk] = field(default_factory=list)
    payloads: list[tuple[int, Payload]] = field(default_factory=list)
    done: dict[int, Usage] = field(default_factory=dict)
    failed: dict[int, ErrorInfo] = field(default_factory=dict)

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: TextDelta) -> None:
        self.texts.append(delta)

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def media(self, chunk: MediaChunk) -> None:
        self.media_chunks.append(chunk)

    def progress(self, progress: StepProgress) -> None:
        raise AssertionError("no picture is made")

    def allocate(self, key: int, kind: str, meta: dict[str, Any], specs: TensorSpecs) -> Payload:
        return blank_payload(kind, meta, specs)

    def emit(self, key: int, payload: Payload) -> None:
        self.payloads.append((key, payload))

    def consumed(self, key: int, port: str) -> None:
        pass

    def finish(self, key: int, usage: Usage) -> None:
        self.done[key] = usage

    def fail(self, key: int, error: ErrorInfo) -> None:
        self.failed[key] = error

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        raise AssertionError("nobody asked")

    def pcm(self, key: int) -> bytes:
        return b"".join(chunk.data for chunk in self.media_chunks if chunk.key == key)


class LoadedStage:
    """A loaded stage: :meth:`take` gives it requests, and :meth:`run` runs all of them together."""

    def __init__(self, pipeline: Pipeline, name: str, folder: Path, **options: Any) -> None:
        stage = next(stage for stage in pipeline.stages if stage.name == name)
        hello = Hello(
            version=PROTOCOL_VERSION,
            stage=name,
            replica=0,
            incarnation=1,
            engine=stage.engine,
            adapter=stage.adapter,
            model=str(folder / stage.model),
            options=filled(stage.options, options),
        )
        self.engine = GenerationEngine(hello)
        self.info = self.engine.load(lambda text, fraction: None)

    def take(
        self,
        key: int,
        params: dict[str, Any],
        port: str | None,
        payloads: Iterable[Payload],
        *,
        visible: bool,
        routed: bool,
    ) -> None:
        """Admit a request whose input is complete. Raises the error of a request that is refused."""
        ports = frozenset() if port is None else frozenset([port])
        self.engine.admit(Work(key, f"r{key}", params, ports, visible=visible, routed=routed))
        if port is not None:
            for payload in payloads:
                self.engine.feed(key, port, payload, False)
            self.engine.feed(key, port, None, True)

    def run(self, out: Kept | None = None) -> Kept:
        """Step until nothing is runnable, and return the output."""
        out = Kept() if out is None else out
        while self.engine.runnable:
            self.engine.step(out)
        return out
