"""Many odd requests at once, with edges of one credit, small pools and aborts: each gets what it gets alone."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from tests.models.omni.line import Answer, Ask, Line, _Outbox
from tests.models.omni.media import audio, image

from omni_actors.connectors.payload import Payload
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.protocol.params import Prompt, Speech

REQUESTS, AT_ONCE = 16, 12

ROOMY = {"kv_memory_mib": 16, "prefix_cache": False}

TIGHT = {"kv_blocks": 48, "block_size": 4, "max_model_len": 192, "step_tokens": 24, "max_batch": 12}


class RandomLine(Line):
    """Payloads arrive, engines step and requests are aborted as ``drawn`` says. An edge has one credit, which comes
    back when its payload is consumed."""

    drawn = random.Random(0)
    aborts = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.unread: Counter[tuple[int, str]] = Counter()
        self.boxes: dict[tuple[int, str], deque[Callable[[], None]]] = defaultdict(deque)
        self.aborted: set[int] = set()

    def _deliver(self, key: int, stage: str, port: str, payload: Payload | None) -> None:
        def feed() -> None:
            self.unread[key, stage] -= payload is not None
            if stage in self._busy.get(key, ()):
                engine = self.engines[stage]
                self._guard(key, stage, lambda: engine.feed(key, port, payload, payload is None))

        self.unread[key, stage] += payload is not None
        self.boxes[key, stage].append(feed)

    def _turn(self) -> bool:
        for box in [box for box in self.boxes if self.drawn.random() < 0.5]:
            self.boxes[box].popleft()()
            if not self.boxes[box]:
                del self.boxes[box]
        if self._busy and self.drawn.random() < self.aborts:
            key = self.drawn.choice(sorted(self._busy))
            self.aborted.add(key)
            for stage in self._busy.pop(key):
                self.engines[stage].abort(key)
        for name, engine in self.drawn.sample(sorted(self.engines.items()), len(self.engines)):
            if engine.runnable and self.drawn.random() < 0.7:
                engine.step(_OneCredit(self, name))
        return bool(self._busy or self.boxes)


@dataclass(frozen=True)
class _OneCredit(_Outbox):
    line: RandomLine

    def ready(self, key: int) -> bool:
        return not any(self.line.unread[key, target] for target, _ in self.line.targets[self.stage])


def asks(drawn: random.Random) -> list[Ask]:
    """Of all kinds: with and without media, speech, stop strings, and ends."""
    made = []
    for number in range(REQUESTS):
        given = drawn.choice([[], [], [image(64, 64 + 28 * (number % 3), number)], [audio(0.8, number)]])
        parts: list[dict[str, Any]] = [{"type": it.modality, "index": i} for i, it in enumerate(given)]
        parts.append({"type": "text", "text": f"Question {number}: " + "what is it doing? " * drawn.randrange(3)})
        sampling = {
            "temperature": drawn.choice([0.0, 1.0]),
            "seed": number,
            "ignore_eos": drawn.random() < 0.5,
            "stop": drawn.choice([[], [], ["e"], ["an", "o"]]),
        }
        speech = Speech(max_tokens=drawn.randrange(1, 50), seed=number, temperature=drawn.choice([0.0, None]))
        payloads = [it.payload(i) for i, it in enumerate(given)]
        prompt = Prompt(messages=[{"role": "user", "content": parts}])
        made.append(Ask(prompt, payloads, drawn.randrange(1, 24), speech if drawn.random() < 0.7 else None, sampling))
    return made


def outcome(answer: Answer) -> Any:
    """Text, what the talker was told, and what it said; and what is counted of them."""
    told = [token for payload in answer.payloads["thinker"] for token in payload.meta["tokens"]]
    codes = [payload.tensors["codes"] for payload in answer.payloads["talker"]]
    counted = {stage: (it.prompt_tokens, it.completion_tokens) for stage, it in answer.usage.items()}
    said = np.concatenate(codes).tolist() if codes else []
    return answer.error, answer.text, answer.tokens, answer.finish_reason, told, said, counted


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("family", ["qwen3-omni", "qwen2.5-omni"])
def test_each_gets_what_it_gets_alone(family: str, tiny_model: Callable[[str], Path]) -> None:
    package = family.replace("-", "_").replace(".", "_")
    pipeline: Pipeline = resolve_name(f"omni_actors.models.{package}.pipeline:PIPELINE")
    codec = pipeline.stages[-1].name
    edges = tuple(edge for edge in pipeline.edges if edge.stage != codec)
    pipeline = replace(pipeline, stages=pipeline.stages[:-1], edges=edges)
    drawn = random.Random(5)
    asked = asks(drawn)
    roomy = Line(pipeline, tiny_model(family), {"thinker": ROOMY, "talker": ROOMY})
    expected = [outcome(answer) for answer in roomy.run(asked)]
    assert not any(error for error, *_ in expected)
    line = RandomLine(pipeline, tiny_model(family), {"thinker": TIGHT, "talker": TIGHT})
    line.drawn = drawn
    for line.aborts in (0.0, 0.02):
        line.aborted.clear()
        found = line.run(asked, AT_ONCE)
        first = min(line.answers)
        for number, answer in enumerate(found):
            if first + number not in line.aborted:
                assert outcome(answer) == expected[number], number
        assert line.idle()
    assert 0 < len(line.aborted) < REQUESTS
    talker, thinker = line.adapter("talker"), line.adapter("thinker")
    assert not any((talker.requests, talker.decoder.features, talker._heard, thinker._requests))
    for stage in ("thinker", "talker"):
        assert line.engines[stage].counters()["preemptions_total"] > 0, stage
