"""A pipeline beside transformers' model of the same folder: in what respects, and how far, they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.omni.cases import FRAMES, TOKENS, Case, cases
from tests.models.omni.line import Answer, Line
from tests.models.omni.whole import Outcome, Whole
from tests.models.qwen2_5_omni.whole import STEPS, Qwen25Omni
from tests.models.qwen3_omni.whole import Qwen3Omni

from omni_actors.connectors.payload import Payload
from omni_actors.models.qwen2_5_omni import pipeline as qwen2_5_omni
from omni_actors.models.qwen3_omni import pipeline as qwen3_omni
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.worker.byte_cache import ByteCache

TIE = 1e-4
"""Two best logits nearer than this are a tie: rounding decides."""

TOLERANCES = {"logits": 3e-5, "states": 3e-5, "talker logits": 3e-4, "samples": 1e-4}
"""Largest differences: of samples by full scale, else by the largest value of the request. A tiny talker's weights make
forty times as much of what its input is off."""


@dataclass(frozen=True)
class Family:
    """``voices`` take turns in the cases; ``options`` by stage are such that nothing is left out for speed."""

    pipeline: Pipeline
    whole: type[Whole]
    voices: Sequence[str]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


FAMILIES = {
    "qwen3-omni": Family(qwen3_omni.PIPELINE, Qwen3Omni, ("ethan", "chelsie", "aiden")),
    "qwen2.5-omni": Family(
        qwen2_5_omni.PIPELINE,
        Qwen25Omni,
        ("Ethan", "Chelsie", "Chelsie", "Ethan"),
        {"token2wav": {"left_context_blocks": None, "look_ahead_blocks": None, "steps": STEPS}},
    ),
}


class Comparison:
    """Of one family's tiny checkpoint. What transformers makes of a case is computed once."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.line = Line(family.pipeline, folder, family.options)
        self.whole = family.whole(folder)
        self.cases = cases(family.voices)
        self._outcomes: dict[str, Outcome] = {}

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)

    def outcome(self, case: Case) -> Outcome:
        if case.name not in self._outcomes:
            self._outcomes[case.name] = self.whole.run(case.messages, case.given, case.voice, TOKENS, FRAMES)
        return self._outcomes[case.name]

    def check(self, case: Case, answer: Answer, outcome: Outcome | None = None) -> None:
        found = self.differences(answer, outcome or self.outcome(case))
        worse = {name: value for name, value in found.items() if value > TOLERANCES.get(name, 0)}
        assert not worse, (case.name, found)

    def fault(self, name: str) -> dict[str, float]:
        """Which respects are off, and by how much, when this case runs on a faulty line."""
        case = self.case(name)
        (answer,) = self.line.run([case.ask()])
        found = self.differences(answer, self.outcome(case))
        return {what: value for what, value in found.items() if value > 10 * TOLERANCES.get(what, 0)}

    def differences(self, answer: Answer, outcome: Outcome) -> dict[str, float]:
        """How far the answer is from the reference in each respect; ``inf`` where even the shape is another. Tokens and
        codes count those that differ. After a frame with a tie among its further codes nothing is compared."""
        assert answer.error is None, answer.error
        first = len(outcome.prompt)
        steps = [answer.logits["thinker"].get(first + i) for i in range(len(outcome.tokens))]
        drawn = sorted(answer.logits["talker"])[: len(outcome.talker_logits)]
        talker = [answer.logits["talker"][position] for position in drawn]
        spoken = torch.isfinite(talker[0]) if talker else torch.empty(0, dtype=torch.bool)
        codes = answer.joined("talker", "codes") if answer.payloads["talker"] else np.empty((0, outcome.codes.shape[1]))
        codec = self.line.last
        samples = answer.joined(codec, "samples") if answer.payloads[codec] else np.empty(0)
        expected, drawn_logits, wave = outcome.codes.numpy(), outcome.talker_logits.numpy(), outcome.samples
        if (tied := outcome.tied_frame(TIE)) is not None:  # a frame's last samples need the frame behind it
            each = len(wave) // len(expected)
            codes, expected, wave = codes[:tied], expected[:tied], wave[: max(0, tied - 1) * each]
            talker, drawn_logits, samples = talker[: tied + 1], drawn_logits[: tied + 1], samples[: len(wave)]
        return {
            "tokens": _unequal(np.array(answer.tokens), np.array(outcome.tokens)),
            "logits": _apart(_stack(steps), outcome.logits.numpy()),
            "states": _apart(answer.joined("thinker", "states"), outcome.states.numpy()),
            "codes": _unequal(codes, expected),
            "talker logits": _apart(_stack(talker)[:, spoken], drawn_logits[: len(talker), spoken]),
            "samples": _apart(samples, wave, scale=1.0),
        }

    @contextmanager
    def fragile(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
        """The line, for ``monkeypatch`` to break: what was computed before does not hide it, nor is it used later."""
        encoder = self.line.adapter("encoder")
        monkeypatch.setattr(encoder, "cache", ByteCache(0))
        self._forget()
        yield self.line
        self._forget()

    def _forget(self) -> None:
        for stage in ("thinker", "talker"):
            engine: Any = self.line.engines[stage]
            engine.attach(engine._adapter)


@contextmanager
def changed_payloads(line: Line, stage: str, change: Callable[[Payload], None]) -> Iterator[None]:
    """Every payload of the stage is changed before it is handed on."""
    emit = line.emit

    def faulty(key: int, source: str, payload: Payload) -> None:
        if source == stage:
            payload = Payload(payload.kind, payload.meta, {n: t.copy() for n, t in payload.tensors.items()})
            change(payload)
        emit(key, source, payload)

    line.emit = faulty  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del line.emit  # type: ignore[method-assign]


def _stack(rows: list[torch.Tensor | None]) -> np.ndarray[Any, Any]:
    there = [row.numpy() for row in rows if row is not None]
    return np.stack(there) if there else np.empty((0, 0))


def _unequal(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float((got != expected).sum()) if got.shape == expected.shape else float("inf")


def _apart(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], scale: float | None = None) -> float:
    if got.shape != expected.shape:
        return float("inf")
    return float(np.abs(got - expected).max(initial=0)) / (scale or float(np.abs(expected).max(initial=1e-9)))
