"""The sampler of an engine: the next token of each choice whose logits a step has computed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_actors.worker.checks import OutputError
from omni_actors.worker.engine import Outbox
from omni_actors.worker.engines.autoregressive.adapter import SampledToken
from omni_actors.worker.engines.autoregressive.choice import Choice
from omni_actors.worker.engines.autoregressive.decoder import StepOutput
from omni_actors.worker.engines.autoregressive.prompts import PromptTable
from omni_actors.worker.engines.autoregressive.request import PromptRequest, keep_logprobs, prompt_text
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.engines.autoregressive.scheduler import Scheduler
from omni_actors.worker.engines.autoregressive.sequence import ScheduledChunk, Sequence
from omni_actors.worker.engines.autoregressive.step import IsolatedStep


class Sampler:
    """Samples one token for each choice that is due, and gives the token to the choice.

    ``resume`` brings the choices of a request whose prompt is computed to where an earlier attempt left them, and
    returns the choices that are due at once. ``discard_kv`` fails a request whose logits are not finite.
    """

    def __init__(
        self,
        prompts: PromptTable,
        isolated: IsolatedStep,
        runner: ModelRunner,
        scheduler: Scheduler,
        resume: Callable[[PromptRequest], list[Choice]],
        discard_kv: Callable[[int, Exception, Outbox], None],
    ) -> None:
        self._prompts = prompts
        self._requests, self._totals = prompts.requests, prompts.totals
        self._isolated = isolated
        self._runner = runner
        self._scheduler = scheduler
        self._resume = resume
        self._discard_kv = discard_kv

    @torch.inference_mode()
    def sample(self, due: list[tuple[Sequence, int]], output: StepOutput, out: Outbox) -> list[Choice]:
        """Sample a token for each sequence that needs one, and return the choices with a new token."""
        logits = output.logits
        picks: list[tuple[Choice, int]] = []
        ended: list[Choice] = []
        sources = {row: sequence for sequence, row in due}
        for row, sequence in sources.items():
            try:
                choices = self._due(self._requests[sequence.key], sequence, logits[row : row + 1])
            except Exception as error:
                self._prompts.fail(sequence.key, error, out)
                continue
            for choice in choices:
                if choice.limit and choice.finish_reason is None:
                    picks.append((choice, row))
                else:
                    ended.append(choice)
        for choice in ended:
            choice.end("length")
        if not picks:
            return ended
        draws = self._isolated.draw(picks, output, sources)
        for key, failure in draws.failed.items():
            self._prompts.fail(key, failure, out)
        for key in {draws.picks[i][0].sequence.key for i in draws.sampled.broken}:
            self._discard_kv(key, OutputError("logits are not finite"), out)
        moved: list[Choice] = []
        drawn: list[SampledToken] = []
        sampled = zip(draws.picks, draws.sampled.token_ids, draws.sampled.logprobs, strict=True)
        for (choice, row), token_id, logprob in sampled:
            key, index = choice.sequence.key, choice.sequence.index
            if key not in self._requests:
                continue
            position = choice.completion_tokens
            try:
                choice.push(token_id, logprob)
            except Exception as error:
                self._prompts.fail(key, error, out)
                continue
            moved.append(choice)
            drawn.append(SampledToken(key, index, position, token_id, row, token_id in self._prompts.adapter.eos))
        self._totals["completion_tokens"] += len(moved)
        drawn = [it for it in drawn if it.key in self._requests]
        for key, failure in self._isolated.after_sampling(drawn, output).items():
            self._prompts.fail(key, failure, out)
        return ended + moved

    def _due(self, request: PromptRequest, sequence: Sequence, logits: torch.Tensor) -> list[Choice]:
        """Return the choices of a sequence's logits [1, vocabulary]: its own choice, and after the prompt all others,
        forked.

        A resumed choice is left out until its earlier tokens are computed.
        """
        choice = request.choices[sequence.index]
        if choice.completion_tokens or choice.end_emitted or sequence.index:
            return [choice]
        for index in range(1, request.sampling.n):
            child = sequence.sibling(index)
            copy = self._scheduler.fork(sequence, child)
            if copy is not None:
                self._runner.copy(sequence.blocks[-1], copy)
            request.choices.append(self._prompts.choice(request, child, choice.limit))
        due = self._resume(request)
        for each in request.choices:
            if each.sequence.logprob_positions.start == request.first.prompt_len and each.sequence.logprob_positions:
                keep_logprobs(
                    request,
                    ScheduledChunk(each.sequence, request.first.prompt_len - 1, 1, False),
                    logits,
                    self._prompts.token_bytes,
                )
        if request.sampling.echo:
            text = prompt_text(request, self._prompts.adapter)
            for each in due:
                each.echo(text, request.prompt_logprobs)
        return due
