"""Interrupts requests of an autoregressive engine at every step, and lets another attempt go on behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.worker.engines.ar_driver import MAX_STEPS, Answer, Collector

from omni_actors.entrypoints.openai.tally import Tally
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Prefix
from omni_actors.protocol.request import TextDelta, TokenLogprob, Usage
from omni_actors.worker.engine import Work


@dataclass
class Told:
    """What an attempt told, a list of deltas for each step, and what it gave to later stages."""

    steps: list[list[TextDelta]] = field(default_factory=list)
    emitted: str = ""
    usage: Usage | None = None

    def answers(self, steps: int | None = None) -> dict[int, Answer]:
        """What the client has after so many steps."""
        made: dict[int, Answer] = defaultdict(Answer)
        for step in self.steps[:steps]:
            for delta in step:
                answer = made[delta.index]
                assert answer.finish_reason is None, "a delta after the last one"
                answer.text += delta.text
                answer.token_ids += delta.token_ids
                answer.logprobs += delta.logprobs or []
                answer.finish_reason = delta.finish_reason
        return dict(made)

    def take(self, out: Collector) -> None:
        """What a step has told."""
        if out.deltas:
            self.steps.append(out.deltas)
            out.deltas = []

    def prefix(self, steps: int) -> Prefix:
        """What the next attempt is told of these steps."""
        answers = self.answers(steps)
        return Prefix(tuple(tuple(answers[i].token_ids) if i in answers else () for i in range(max(answers) + 1)))


def attempt(engine: Any, work: Work) -> Told:
    """Run one request to its end. ``engine`` has the calls of an engine that takes no input."""
    out, told = Collector(), Told()
    engine.admit(work)
    for _ in range(MAX_STEPS):
        if not engine.runnable:
            break
        assert engine.step(out)
        told.take(out)
    if out.errors:
        raise OmniError(out.errors[work.key])
    told.emitted, told.usage = "".join(out.emitted[work.key]), out.usage[work.key]
    return told


def check_every_cut(
    attempted: Callable[[Work], Told], work: Work, cuts: Sequence[int] | None = None
) -> tuple[Told, list[Told]]:
    """A request that is interrupted after any step ends as the one that is not. Returns the latter, and what followed
    the interruptions."""
    whole = attempted(work)
    wanted = whole.answers()
    rests = []
    for cut in range(1, len(whole.steps) + 1) if cuts is None else cuts:
        rest = attempted(replace(work, prefix=whole.prefix(cut)))
        before, after = whole.answers(cut), rest.answers()
        joined = {index: _joined(before.get(index), after.get(index)) for index in before.keys() | after.keys()}
        assert joined.keys() == wanted.keys()
        for index, answer in wanted.items():
            said = joined[index]
            assert (said.text, said.token_ids, said.finish_reason) == (
                answer.text,
                answer.token_ids,
                answer.finish_reason,
            ), f"cut after step {cut}"
            _same_logprobs(said.logprobs, answer.logprobs)
        assert rest.emitted == whole.emitted
        assert rest.usage is not None
        assert whole.usage is not None
        assert rest.usage.prompt_tokens == whole.usage.prompt_tokens
        assert rest.usage.completion_tokens == whole.usage.completion_tokens
        assert rest.usage.cached_tokens <= rest.usage.prompt_tokens
        _check_tally([*whole.steps[:cut], *rest.steps], whole.usage)
        rests.append(rest)
    return whole, rests


def _check_tally(steps: Sequence[Sequence[TextDelta]], usage: Usage) -> None:
    """Who counts along with the deltas knows the prompt from the first on, and in the end what the engine counted."""
    tally = Tally()
    for delta in (delta for step in steps for delta in step):
        tally.take(delta)
        assert tally.of(delta.index).prompt_tokens == usage.prompt_tokens
    indices = {delta.index for step in steps for delta in step}
    assert sum(tally.of(index).completion_tokens for index in indices) == usage.completion_tokens


def _joined(before: Answer | None, after: Answer | None) -> Answer:
    if before is None or after is None:
        found = before or after
        assert found is not None
        return found
    assert before.finish_reason is None, "a choice that was over is told of again"
    return Answer(
        before.text + after.text,
        before.token_ids + after.token_ids,
        after.finish_reason,
        before.logprobs + after.logprobs,
    )


def _same_logprobs(found: list[TokenLogprob], wanted: list[TokenLogprob]) -> None:
    assert [it.token_id for it in found] == [it.token_id for it in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert a.token == b.token
        assert [t[0] for t in a.top] == [t[0] for t in b.top]
        for x, y in zip([a.logprob, *(t[2] for t in a.top)], [b.logprob, *(t[2] for t in b.top)], strict=True):
            assert abs(x - y) < 1e-4 or x != x
