"""Adapters of engines that read prompts and write tokens: the interface that a model family implements.

Every such engine, vLLM's included, calls :class:`PromptAdapter`. This project's own engine calls
:class:`AutoregressiveAdapter`, which adds the network
(:mod:`~omni_actors.worker.engines.autoregressive.decoder`) and the work after a step.
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
    """An addition to a request's prompt, by an admission or by an input.

    ``root`` names the contents of the prompt beside tokens: two prompts with equal tokens and different roots share no
    cache. ``reuse`` says whether the prompt may share a cache at all. ``continued`` says that the answer continues the
    prompt's own text, as in a completion. These three fields count in the input with the first tokens.

    ``complete`` says that the prompt is complete, although ports may still be open: later input is for later steps.
    ``final`` says that no token is sampled: the request is over when its prompt is computed. ``max_tokens`` bounds the
    answer, beside the request's own bound, because there is no input for more steps.

    ``media`` are the media for an engine with the model's encoders (vLLM): by modality, in the order of their
    placeholder tokens, each of which the engine widens to the tokens of its medium. An input with media holds the whole
    prompt.
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
    """A family's state of a request after its prompt, beside the tokens and the cache: plain builtins, and tensors."""

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token that was just sampled, from the logits and hidden state of ``row``.

    The token has the ``position`` (from 0) in choice ``index`` of a request. ``ends`` says that the token is an
    end-of-sequence token.
    """

    key: int
    index: int
    position: int
    token: int
    row: int
    ends: bool


@dataclass(frozen=True, slots=True)
class Release:
    """The part of a request's first choice that a step made final.

    ``text`` is new text. ``states`` are the side vectors [n, side] of the tokens ``start … start + n - 1``
    (``tokens``), prompt included, or ``None``. The tokens are computed, and no stop string can remove them any more.
    """

    key: int
    text: str
    start: int
    tokens: Sequence[int]
    prompt_len: int
    states: torch.Tensor | None


class PromptAdapter(ABC):
    """A model family's side of a stage that reads prompts and writes text, for any engine. One thread calls all
    methods.

    An exception of a method fails one request: an :class:`OmniError` with its own status, any other with a 500 that
    names the stage.
    """

    vocabulary: Vocabulary | None
    """The vocabulary; ``None`` if tokens are not text (codec frames)."""
    penalize_prompt: bool = True
    """Whether a repetition penalty counts the prompt's tokens."""
    eos: frozenset[int]
    """The token ids that end an answer."""
    max_model_len: int
    """The most tokens of prompt and answer together."""
    tensors: ClassVar[Specs] = {}
    """The tensors of emitted payloads, by kind and tensor name. Every float tensor must be finite, declared or not."""
    sampling_defaults: Mapping[str, Any]
    """Values for the fields of :class:`~omni_actors.protocol.params.Sampling` that a request leaves ``None``."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The upper bound of token ids, exclusive."""

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load the family's files and set the attributes above. Return the facts for the serving process."""

    @abstractmethod
    def open(self, work: Work) -> PromptInput:
        """Open a new request, and return its prompt, or the part of the prompt that needs no input on ports."""

    def feed(self, key: int, port: str, payload: Payload | None, end: bool) -> PromptInput:
        """Take input on a port, in order, and return its addition to the prompt.

        Sampling begins when all ports have ended. Check here what a step could fail on
        (:func:`~omni_actors.worker.checks.check_input`).
        """
        raise NotImplementedError(f"{type(self).__name__} takes no input on port {port!r}")

    def sampling(self, work: Work) -> Sampling:
        """Return the sampling parameters of a request. The engine validates them against the vocabulary's size."""
        return work.params.get("sampling") or Sampling()

    def capture(self, graphs: Graphs, most: int) -> None:
        """Capture the computation of :meth:`sampled` for up to ``most`` tokens, if the computation is large.

        Called once, after :meth:`load`, on devices with graph capture. Raises RuntimeError when capture is impossible.
        """

    def record(self, key: int) -> bytes:
        """Return the state, beside tokens, of the draws since the last call, from which another process can continue.

        An example is a talker's residual codes. :meth:`restore` gets all returned pieces back, concatenated.
        """
        return b""

    def restore(self, key: int, prefix: Prefix) -> None:
        """Restore the state of an earlier attempt of the request, which ran elsewhere.

        Called once, when the prompt is complete. Later stages get everything again: the next :meth:`output` returns the
        output of all restored tokens.
        """

    def output(self, release: Release) -> Payload | None:
        """Return the payload of this step for the request's edges, if there is any."""
        return text_payload(release.text) if release.text else None

    def shown(self, delta: TextDelta) -> TextDelta:
        """Return the visible part of a step's text; by default all text. (A transcriber removes its marks.)

        Called for each delta of a visible request, including the last delta of a choice.
        """
        return delta

    def counters(self) -> dict[str, float]:
        """Return the family's own counters, beside the engine's
        (:meth:`~omni_actors.worker.engine.Engine.counters`)."""
        return {}

    def close(self, key: int) -> None:
        """Close a request, however it ended, also after :meth:`open` raised."""


class AutoregressiveAdapter(PromptAdapter):
    """A model family's side of an autoregressive stage with this project's own engine.

    :meth:`sampled` and the decoder are called for all requests of a step. When a call raises, it is repeated for fewer
    requests until the faulty request is known (:mod:`omni_actors.worker.isolation`). So a call must change no state of
    a request before it is sure to return.
    """

    decoder: Decoder
    group: Group = ALONE
    """The ranks that share the network, this process among them.

    An engine with several ranks sets the group before :meth:`load`. The decoder then computes this rank's part, and
    rank 0 gets the whole logits."""

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    def ready(self, key: int) -> bool:
        """Whether the network's input for the request's next step is there.

        A request that is not ready waits for input (:meth:`feed`).
        """
        return True

    def sampled(self, drawn: Sequence[SampledToken], output: StepOutput) -> None:
        """Compute the next step's input from sampled tokens, such as a talker's residual codes.

        Called once a step, in inference mode, before :meth:`output`. :meth:`restore` rebuilds the same state from the
        records.
        """

    def export_state(self, key: int) -> State:
        """Return the state of a computed prompt for the adapter of the engine that continues (an offset of positions,
        say).

        State that only the computation of the prompt needs is not exported.
        """
        return State()

    def import_state(self, work: Work, state: State) -> None:
        """Continue a request whose prompt was computed elsewhere. Called instead of :meth:`open`.

        The tensors belong to the adapter, and are in host memory.
        """
