"""Adapters: the part of a model family that an engine which reads prompts and writes tokens calls.

:class:`PromptAdapter` is the part that every such engine calls, whatever computes the tokens (vLLM's among them).
:class:`AutoregressiveAdapter` adds what this project's own engine calls beside it: the network
(:mod:`~omni_actors.worker.engines.autoregressive.decoder`) and what follows a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.platforms.runtime import Graphs
from omni_actors.protocol.frames import Hello, Prefix
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.checks import Specs
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.decoder import Decoder, StepOutput
from omni_actors.worker.engines.autoregressive.detokenize import Vocabulary


@dataclass(slots=True)
class PromptInput:
    """What an admission or an input adds to a request's prompt.

    ``root`` names what the prompt holds beside tokens: two prompts with equal tokens and different roots share no
    cache. ``reuse`` says whether they may share one at all. ``continued`` says that the answer goes on with the
    prompt's own text, as in a completion. These three count in the input that brings the first tokens.

    ``complete`` says that nothing more is added, although ports may be open still: what they bring from now on is input
    of the steps to come. ``final`` says that nothing is sampled: the request is over when its prompt is computed.
    ``max_tokens`` bounds the answer beside what the request says: there is no input for more steps.

    ``media`` are what an engine that has the model's towers too (vLLM) is to look at itself: by modality, in the order
    of their marks among ``tokens``, each of which it widens to as many tokens as the medium has. An input that has
    some holds the whole prompt.
    """

    tokens: list[int] = field(default_factory=list)
    root: bytes = b""
    continued: bool = False
    reuse: bool = True
    complete: bool = False
    final: bool = False
    max_tokens: int | None = None
    media: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """What a family knows of a request whose prompt is computed, beside its tokens and what the cache holds: plain
    builtins, and tensors."""

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token that was just sampled: the ``position``-th (from 0) of choice ``index`` of a request, from the logits and
    hidden state of ``row``. ``ends`` says that it is an end-of-sequence token."""

    key: int
    index: int
    position: int
    token: int
    row: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Release:
    """What a step made certain of a request's first choice. ``text`` is new text. ``states`` are the side vectors
    [n, side] of the tokens ``start … start + n - 1`` (``tokens``), prompt included, ``None`` without any: of tokens
    that are computed and that no stop string may still take back."""

    key: int
    text: str
    start: int
    tokens: Sequence[int]
    prompt_len: int
    states: torch.Tensor | None


class PromptAdapter(ABC):
    """A model family's side of a stage that reads prompts and writes text, whatever computes the tokens between. One
    thread calls everything.

    What a method raises fails one request: :class:`OmniError` as it says, anything else with a 500 that names the
    stage.
    """

    vocabulary: Vocabulary | None
    """``None`` where tokens are no text (codec frames)."""
    penalize_prompt: bool = True
    """Whether a repetition penalty counts the prompt's tokens."""
    eos: frozenset[int]
    """Ids that end an answer."""
    max_model_len: int
    """Tokens of prompt and answer together."""
    tensors: ClassVar[Specs] = {}
    """What emitted payloads must hold, by kind and tensor name. Every float tensor must be finite, declared or not."""
    sampling_defaults: Mapping[str, Any]
    """For the fields of :class:`~omni_actors.protocol.params.Sampling` that a request leaves ``None``."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids are below it."""

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load what it needs and set the attributes above. Returns what the serving process should know."""

    @abstractmethod
    def open(self, work: Work) -> PromptInput:
        """A new request: its prompt, or as much of it as there is before its ports are fed."""

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        """Input on a port, in order: what it adds to the prompt. Sampling begins when all ports have ended. What a step
        could break on is looked at here (:func:`~omni_actors.worker.checks.check_input`)."""
        raise NotImplementedError(f"{type(self).__name__} takes no input on port {port!r}")

    def sampling(self, work: Work) -> Sampling:
        """How this request's tokens are chosen. It is validated against the vocabulary's size."""
        return work.params.get("sampling") or Sampling()

    def capture(self, graphs: Graphs, most: int) -> None:
        """Record what :meth:`sampled` computes for up to ``most`` tokens, if that is much. Called once, after
        :meth:`load`, where the device records steps. Raises RuntimeError when it cannot be."""

    def record(self, key: int) -> bytes:
        """What must be known, beside their tokens, of what was drawn of a request since the last call, to go on behind
        it in another process (a talker's residual codes): as :meth:`restore` gets it back, piece behind piece."""
        return b""

    def restore(self, key: int, prefix: Prefix) -> None:
        """An earlier attempt of the request, elsewhere, has got so far: make of it what was made of the same there.
        Called once, when the prompt is complete. What later stages had of it is theirs to have again: the next
        :meth:`output` gives all of it."""

    def output(self, release: Release) -> Payload | None:
        """What the request's edges get of this step, if it has any."""
        return text_payload(release.text) if release.text else None

    def shown(self, delta: TextDelta) -> TextDelta:
        """What the client sees of a step's text: by default all of it. (A transcriber takes out what it says about the
        clip.) Called for each delta of a visible request, the last one of a choice too."""
        return delta

    def counters(self) -> dict[str, float]:
        """The family's own, beside the engine's (:meth:`~omni_actors.worker.engine.Engine.counters`)."""
        return {}

    def close(self, key: int) -> None:
        """A request has left, by whichever way: also one that :meth:`open` raised for."""


class AutoregressiveAdapter(PromptAdapter):
    """A model family's side of an autoregressive stage whose network this project's own engine drives.

    :meth:`sampled` and the decoder are called for all of a step. When they raise they are called again, for fewer
    requests, until it is known whose fault it is (:mod:`omni_actors.worker.isolation`): they change nothing that a
    request has before they are sure to return.
    """

    decoder: Decoder
    group: Group = ALONE
    """The ranks among which the network is shared out, of which this process is one. Set before :meth:`load`, by an
    engine that has several; then the decoder computes this rank's part, and rank 0 gets the whole logits."""

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    def ready(self, key: int) -> bool:
        """Whether the network's input for the request's next step is there. A request that is not ready stands still;
        what makes it ready is input (:meth:`feed`)."""
        return True

    def sampled(self, drawn: Sequence[Drawn], output: StepOutput) -> None:
        """Tokens were chosen: make of them what the next step needs (a talker's residual codes). Called once a step, in
        inference mode, before :meth:`output`. What it makes, :meth:`restore` makes of what was recorded of it."""

    def export_state(self, key: int) -> State:
        """The prompt is computed, and another engine goes on with it: what the family's adapter there must know (an
        offset of positions, say). What only the prompt's computation needs stays behind."""
        return State()

    def import_state(self, work: Work, state: State) -> None:
        """Go on with a request whose prompt was computed elsewhere: in the place of :meth:`open`. The tensors are the
        adapter's own, in host memory."""
