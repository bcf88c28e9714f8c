"""The conformance tests of a pipeline."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np

from omni_actors.connectors.payload import Payload
from omni_actors.pipelines import plugin_check
from omni_actors.pipelines.plan import MEDIA_STAGE
from omni_actors.plugins.subprocess_probe import SubprocessProbe, run_probes
from omni_actors.testing import cutting
from omni_actors.testing.bench import Part, StageBench
from omni_actors.testing.outcome import Outcome
from omni_actors.testing.sample import Sample
from omni_actors.testing.served import deaths
from omni_actors.worker.engines.oneshot import GenerationEngine


class PipelineConformance:
    """Conformance tests of a pipeline. Subclass this class in a test file with the dotted name of the :attr:`pipeline`
    and with :attr:`samples`; every method is a test. All tests share one loaded copy of the stages."""

    pipeline: ClassVar[str]
    """The pipeline, as ``package.module:PIPELINE``."""
    samples: ClassVar[tuple[Sample, ...]]
    """Requests that the pipeline serves; a few of them with different ways through the pipeline."""
    model: ClassVar[str | None] = None
    """The folder of the model's weights, if there are any."""
    overrides: ClassVar[tuple[str, ...]] = ()
    """Settings, in the form of ``--set``."""
    rounds: ClassVar[int] = 8
    """Random runs of each kind, for each stage and sample."""
    kills: ClassVar[int] = 2
    """Moments of each answer at which each stage's worker is killed."""
    probe_s: ClassVar[float] = 20.0
    """Longest import of the declaration, in seconds."""

    def split(self, payload: Payload, chance: random.Random) -> Sequence[Payload]:
        """Return a payload as smaller payloads with the same meaning for its port. Override this method where payloads
        have metadata: the default leaves such payloads whole."""
        return cutting.split(payload, chance)

    def test_declaration(self) -> None:
        """The serving process can import the declaration: quickly, without torch, without mistakes."""
        name = resolve_name(self.pipeline).name
        argument = {"name": name, "value": self.pipeline}
        (answer,) = run_probes([SubprocessProbe(Path(plugin_check.__file__), argument)], self.probe_s)
        assert not answer.trouble, answer.trouble
        assert not answer.value.get("broken"), answer.value["broken"]

    def test_samples_are_served(self) -> None:
        """Each sample runs through all its stages, and the last stages give output."""
        for number, sample in enumerate(self.samples):
            outcomes = self._bench().whole(sample)
            for stage, outcome in outcomes.items():
                assert outcome.error is None, f"sample {number}, stage '{stage}': {outcome.error}"
            for final in self._bench().graph(sample).finals:
                said = outcomes[final.name]
                assert said.text or said.sound, f"sample {number}: stage '{final.name}' gave the client nothing"

    def test_any_cut_of_the_input_gives_the_same(self) -> None:
        """Input in other pieces, and between any two steps, gives the same output."""
        for told, part, whole in self._parts():
            for seed in range(self.rounds if part.inputs else 1):
                chance = random.Random(seed)
                found = self._bench().run([part], cutting=chance, how=self.split, order=chance)[0]
                assert not (difference := whole.difference(found)), f"{told}, cut {seed}: {difference}"

    def test_credits_that_are_short_change_nothing(self) -> None:
        """Consumers that read slowly: nothing is emitted without a credit, nothing is lost, and it comes to an end."""
        for told, part, whole in self._parts():
            for seed in range(self.rounds):
                found = self._bench().run([part], order=random.Random(seed), credits=random.Random(seed))[0]
                assert not (difference := whole.difference(found)), f"{told}, credits {seed}: {difference}"

    def test_who_is_beside_a_request_makes_no_difference(self) -> None:
        """All samples at once, twice each, give the same output as alone."""
        by_stage: dict[str, list[tuple[str, Part, Outcome]]] = {}
        for told, part, whole in self._parts():
            by_stage.setdefault(part.stage, []).extend([(told, part, whole)] * 2)
        for each in by_stage.values():
            for seed in range(self.rounds):
                chance = random.Random(seed)
                found = self._bench().run([part for _, part, _ in each], order=chance, credits=chance)
                for place, (told, _, whole) in enumerate(each):
                    assert not (difference := whole.difference(found[place])), f"{told}, in company: {difference}"

    def test_an_abort_at_any_step_leaves_nothing(self) -> None:
        """An aborted request gives no output after its abort, its neighbour is unharmed, and the stage is idle in the
        end."""
        for told, part, whole in self._parts():
            for step in range(4 * self.rounds):
                order = random.Random(step)
                found = self._bench().run([part, part], order=order, abort_at={0: step})
                assert not (difference := whole.difference(found[1])), f"{told}, aborted at {step}: {difference}"

    def test_input_that_is_wrong_fails_its_own_request(self) -> None:
        """A producer that breaks its port's contract harms no other request: tensors that are missing, or of another
        type, shape or range."""
        for told, part, whole in self._parts():
            for name, broken in _spoiled(part):
                found = self._bench().run([broken, part])
                assert not (difference := whole.difference(found[1])), f"{told}, beside {name}: {difference}"

    def test_a_wrong_return_is_one_failed_request(self) -> None:
        """An adapter that returns nothing for an item causes a 500 with the adapter's name, and the stage goes on."""
        for told, part, whole in self._parts():
            engine = self._bench().engine(part.stage)
            if not isinstance(engine, GenerationEngine):
                continue
            adapter: Any = engine._adapter
            adapter.run = lambda items: [None] * len(items)
            try:
                error = self._bench().run([part])[0].error
            finally:
                del adapter.run
            if error is not None:  # else it had no items
                assert f"{type(adapter).__name__}.run returned None" in error.message, f"{told}: {error.message}"
            assert not (difference := whole.difference(self._bench().run([part])[0])), f"{told}: {difference}"

    def test_deaths_of_workers_are_not_noticed(self) -> None:
        """Real workers are killed in the middle of an answer, and the client gets the same output as without a death.
        Stages that declare ``recovery="none"`` may end with 503."""
        served = [sample for sample in self.samples if not sample.feeds]
        found = deaths(self._bench().plan, served, self.kills)
        assert not found, "\n".join(found)

    def _bench(self) -> StageBench:
        return _loaded(self.pipeline, self.model, self.overrides)

    def _parts(self) -> Iterator[tuple[str, Part, Outcome]]:
        """Yield the work of each stage for each sample, with its undisturbed output."""
        bench = self._bench()
        for number, sample in enumerate(self.samples):
            graph, outcomes = bench.graph(sample), bench.whole(sample)
            for part in graph.parts:
                name = part.stage.name
                if name != MEDIA_STAGE:
                    yield f"sample {number}, stage '{name}'", bench.part(sample, graph, name, outcomes), outcomes[name]


@lru_cache(maxsize=4)
def _loaded(target: str, model: str | None, overrides: tuple[str, ...]) -> StageBench:
    return StageBench(target, model, overrides)


def _spoiled(part: Part) -> Iterator[tuple[str, Part]]:
    """Yield the part with its first payload on each port made wrong in one way."""
    for port, payloads in part.inputs.items():
        if not payloads or not payloads[0].tensors:
            continue
        first, *others = payloads
        for name, array in first.tensors.items():
            for told, wrong in (
                ("missing", None),
                ("of another type", array.astype(np.float16 if array.dtype.kind != "f" else np.int16)),
                ("of another shape", array[..., None]),
                ("out of range", np.full_like(array, 100_000_000) if array.dtype.itemsize >= 4 else None),
            ):
                tensors = {key: it for key, it in first.tensors.items() if key != name}
                if wrong is not None:
                    tensors[name] = np.ascontiguousarray(wrong)
                payload = Payload(first.kind, first.meta, tensors)
                inputs = {**part.inputs, port: [payload, *others]}
                yield f"'{name}' {told}", Part(part.stage, part.params, inputs, frozenset(), part.visible, part.routed)
