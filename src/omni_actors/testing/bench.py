"""A test bench for a pipeline's stages, run one after the other in the test's process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from types import TracebackType
from typing import Any, Self

import msgspec

from omni_actors.connectors.payload import Payload
from omni_actors.orchestrator.submission import sections_of
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import MEDIA_STAGE, Plan
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.subgraph import Subgraph, subgraph
from omni_actors.protocol.params import SECTIONS
from omni_actors.testing.cutting import Split, cut, split
from omni_actors.testing.driving import Job, drive
from omni_actors.testing.outcome import Outcome
from omni_actors.testing.sample import Sample
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.device import runtime_of
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.named import bridge_named, engine_named
from omni_actors.worker.returned import facts_of


@dataclass(frozen=True)
class Part:
    """The work of one stage for a sample, with all of its input."""

    stage: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Sequence[Payload]]
    chunked: frozenset[str]
    """Ports whose input may be cut: ports of edges in ``chunk`` mode, and ports that are fed from outside."""
    visible: bool
    routed: bool


class StageBench:
    """The stages of a pipeline on the CPU. A context manager: engines are loaded on first use and closed with the
    bench::

        with StageBench("my_family.pipeline:PIPELINE") as bench:
            outcomes = bench.whole(Sample({"speech": Speech(text="hello")}, task="speech", outputs=("audio",)))

    Args:
        target: The pipeline, as ``package.module:PIPELINE``.
        model: The folder of its weights, if it has any.
        overrides: Settings, in the form of ``--set``.
    """

    def __init__(self, target: str, model: str | None = None, overrides: Sequence[str] = ()) -> None:
        pipeline: Pipeline = resolve_name(target)
        self.registry = Registry({pipeline.name: target})
        forced = pipeline.name if model is not None else None
        self.plan: Plan = resolve(
            model or pipeline.name, platform="cpu", registry=self.registry, overrides=overrides, pipeline=forced
        )
        self._engines: dict[str, Engine] = {}
        self._bridges: dict[str, Callable[[], Bridge]] = {}
        self._keys = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def engine(self, stage: str) -> Engine:
        """Return the engine of a stage, loaded."""
        if stage not in self._engines:
            hello = self.plan.hello(stage, 0, 1)
            runtime_of(hello)
            engine = engine_named(hello)(hello)
            facts_of(engine, engine.load(lambda said, fraction: None))
            self._engines[stage] = engine
        return self._engines[stage]

    def whole(self, sample: Sample) -> dict[str, Outcome]:
        """Run a sample through all its stages, with all input at once and unlimited credits.

        Returns:
            The output of each stage, by name. A stage behind a failed one is not run.

        Raises:
            OmniError: The request itself is wrong (the value of a section, say).
        """
        outcomes: dict[str, Outcome] = {}
        graph = self.graph(sample)
        for part in graph.parts:
            name = part.stage.name
            if name == MEDIA_STAGE or any(
                edge.source in outcomes and outcomes[edge.source].error is not None for edge in part.inputs
            ):
                continue
            if any(edge.source != MEDIA_STAGE and edge.source not in outcomes for edge in part.inputs):
                continue
            ((_, outcome),) = self.run([self.part(sample, graph, name, outcomes)]).items()
            outcomes[name] = outcome
        return outcomes

    def graph(self, sample: Sample) -> Subgraph:
        """Return the stages that the sample needs."""
        return subgraph(self.plan, sample.task, sample.inputs, sample.outputs)

    def part(self, sample: Sample, graph: Subgraph, stage: str, outcomes: Mapping[str, Outcome]) -> Part:
        """Return the work of a stage for the sample, given the ``outcomes`` of the stages before it."""
        (own,) = (part for part in graph.parts if part.stage.name == stage)
        sections = sections_of(sample.request(), self.plan.pipeline.parameters)
        params = {
            name: msgspec.msgpack.decode(sections[name], type=SECTIONS.get(name, Any))
            for name in own.sections
            if name in sections
        }
        inputs: dict[str, Sequence[Payload]] = {}
        chunked = set()
        for edge in own.inputs:
            place = f"{edge.target}.{edge.port}"
            if edge.source == MEDIA_STAGE:
                inputs[edge.port] = list(sample.feeds[place])
                continue
            inputs[edge.port] = self._bridged(edge.bridge, outcomes[edge.source].payloads)
            if edge.mode == "chunk":
                chunked.add(edge.port)
        for port in own.ports:
            if port not in inputs:
                inputs[port] = list(sample.feeds[f"{stage}.{port}"])
                chunked.add(port)
        return Part(stage, params, inputs, frozenset(chunked), own.visible, bool(own.outputs))

    def run(
        self,
        parts: Sequence[Part],
        *,
        cutting: random.Random | None = None,
        how: Split = split,
        order: random.Random | None = None,
        credits: random.Random | None = None,
        abort_at: Mapping[int, int] | None = None,
    ) -> dict[int, Outcome]:
        """Run parts of one stage at the same time.

        Args:
            parts: The parts, all of one stage.
            cutting: Cut the input into other pieces at random.
            how: The function that cuts a payload.
            order: Mix input and steps at random; without it all input comes first.
            credits: Make credits scarce at random.
            abort_at: The index of a part → the step before which the part is aborted.

        Returns:
            The outcome of each part, by its index.
        """
        engine = self.engine(parts[0].stage)
        jobs = []
        for place, part in enumerate(parts):
            inputs = {
                port: cut(payloads, cutting, how) if cutting is not None and port in part.chunked else payloads
                for port, payloads in part.inputs.items()
            }
            self._keys += 1
            work = Work(self._keys, f"request-{self._keys}", part.params, frozenset(inputs), part.visible, part.routed)
            jobs.append(Job(work, inputs, None if abort_at is None else abort_at.get(place)))
        found = drive(engine, jobs, order=order, credits=credits)
        return {place: found[job.work.key] for place, job in enumerate(jobs)}

    def _bridged(self, bridge: str | None, payloads: Sequence[Payload]) -> list[Payload]:
        if bridge is None:
            return list(payloads)
        made = self._bridges.setdefault(bridge, bridge_named(bridge))()
        found = [it for payload in payloads for it in made.feed(payload, False)]
        return [*found, *made.feed(None, True)]
