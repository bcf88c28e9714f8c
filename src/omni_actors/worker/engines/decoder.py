"""What the autoregressive engine needs of a model family.

A family brings an :class:`AutoregressiveAdapter` (prompts, vocabulary, defaults) whose ``decoder`` is the network: it
computes a flat list of tokens, of many sequences at once, and calls :class:`Attention` in every layer. Where keys and
values lie, and which tokens see which, is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from omni_actors.connectors.payload import Payload, text_payload
from omni_actors.platforms.runtime import Graphs
from omni_actors.protocol.frames import Hello, Prefix
from omni_actors.protocol.params import Sampling
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.checks import Specs
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.detokenize import Vocabulary


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a decoder keeps per token: a key and a value of ``head_dim`` for each of ``kv_heads`` in each layer.

    ``side`` is the width of one more vector, which the next stage gets (hidden states, embeddings); 0 for none. It lies
    beside the keys, so that whoever takes over a computed token takes over this too.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    side: int = 0

    @property
    def token_bytes(self) -> int:
        return (self.layers * 2 * self.kv_heads * self.head_dim + self.side) * int(self.dtype.itemsize)


class Attention(Protocol):
    """Causal self-attention of one step's tokens over their own sequences."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key_value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Keep the new keys and values and attend.

        ``query`` is [tokens, heads, head_dim]; ``key_value`` is [tokens, 2 * kv_heads, head_dim], keys first. ``heads``
        is a multiple of ``kv_heads``; neighbouring heads share one. A token sees the last ``window`` tokens up to
        itself. Scores are squeezed into ±``softcap``. Returns [tokens, heads, head_dim].
        """
        ...

    def keep(self, side: torch.Tensor) -> None:
        """Keep the side vectors of the step's tokens: [tokens, kv_shape.side]."""
        ...


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step: ``tokens`` and ``positions`` are int64 [tokens]; ``rows`` int64 [rows] are the tokens after which the
    next one is wanted; ``spans`` say which request's tokens are where, for a family whose inputs are more than token
    ids. ``known`` is what :meth:`LeadingDecoder.known` gave of it, where it was asked."""

    tokens: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    spans: Sequence[Span] = ()
    known: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start … start + count - 1`` of a sequence of request ``key``, from place ``at`` of the flat list on."""

    key: int
    at: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``logits`` [rows, vocab_size] for the step's rows, in the model's dtype or float32. ``hidden`` [rows, width] is
    the last layer's output there, for an adapter that asks more of it than the next token (:meth:`sampled`)."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class Decoder(Protocol):
    """The network. Stateless between steps but for what :class:`Attention` keeps."""

    kv_shape: KVShape
    vocab_size: int
    device: torch.device

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        """Compute the step's tokens: what comes out after ``inputs.rows``."""
        ...


@runtime_checkable
class RecordableDecoder(Decoder, Protocol):
    """A network in two halves. The second one computes from tensors alone, and waits for no result of the device, so
    that a platform may record what it launches (:mod:`omni_actors.worker.engines.recorded`). ``forward`` is both."""

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...] | None:
        """What the step computes from, by token: tensors [tokens, …], as many and of the same further sizes and dtypes
        in every step of one token per sequence. ``None`` for one that is not only that. Called before :meth:`compute`,
        perhaps twice."""
        ...

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        """The step of what was prepared. ``rows`` ``None`` are all of its tokens, in order."""
        ...


@runtime_checkable
class LeadingDecoder(Decoder, Protocol):
    """A network whose first rank alone knows what a request's input is beside tokens: the other ranks are told."""

    def known(self, inputs: StepInputs) -> Mapping[str, torch.Tensor]:
        """What a rank must have of this step, beside tokens and positions, to compute it (:attr:`StepInputs.known`)."""
        ...


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
