"""A request as the autoregressive engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import TokenLogprob, Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.choice import Choice
from omni_actors.worker.engines.detokenize import StopStrings
from omni_actors.worker.engines.sampling import Choosing
from omni_actors.worker.engines.sequence import Sequence


@dataclass(slots=True)
class Request:
    """``first`` is the sequence that computes the prompt, and then the first of the ``choices``, which there are once
    the prompt is complete. ``opened`` says that the adapter knows the request."""

    work: Work
    sampling: Sampling
    choosing: Choosing
    stops: StopStrings
    first: Sequence
    open_ports: set[str]
    continued: bool = False
    final: bool = False
    opened: bool = True
    choices: list[Choice] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return [self.first, *(choice.sequence for choice in self.choices[1:])]

    @property
    def done(self) -> bool:
        return len(self.choices) == self.sampling.n and all(c.finish_reason for c in self.choices)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.first.prompt_len,
            cached_tokens=self.first.cached or 0,
            completion_tokens=sum(c.completion_tokens for c in self.choices),
        )

    @property
    def prompt_param(self) -> str:
        """The field of the client's request that the prompt comes from."""
        prompt = self.work.params.get("prompt")
        return "prompt" if isinstance(prompt, Prompt) and prompt.messages is None else "messages"
