"""The adapter of a diffusion stage: the part of a model family that the diffusion engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.checks import Specs
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor

ENCODE, DENOISE, DECODE = "encode", "denoise", "decode"
"""The parts of a diffusion model. A stage runs some of them, in this order, without a gap (option ``parts``)."""


class DiffusionAdapter(ABC):
    """A model family's side of a diffusion stage.

    One thread calls all methods. An :class:`OmniError` is the request's own failure; any other exception is logged and
    becomes a 500 that names the stage. A failure of a batch is found by running the batch again in parts, so
    :meth:`encode`, :meth:`predict` and :meth:`decode` must change no cursor: the engine commits their results.

    A method that returns an iterator yields ``None`` after each bounded slice of its work, and its results last; it may
    yield its results at once. Between two slices the engine takes new requests and aborts, and may run other batches. A
    cursor that is over by then (:attr:`Cursor.over`) gets no more work: any value stands for its result.
    """

    tensors: ClassVar[Specs] = {}
    """The tensors of payloads that this stage takes and emits, by kind and tensor name."""

    accelerated: ClassVar[bool] = False
    """Whether the adapter follows the options and fields of accelerations: step caches, LoRA adapters, offload,
    compilation. The engine refuses them for another one."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.parts: frozenset[str] = frozenset((hello.options.get("parts") or "encode+denoise+decode").split("+"))
        """The parts of the model that this stage runs, of :data:`ENCODE`, :data:`DENOISE` and :data:`DECODE`."""
        self.compiling: Callable[[], AbstractContextManager[object]] = nullcontext
        """The context around a compilation or a capture of graphs, at any time of the worker's life (``with
        self.compiling(): …``): see :attr:`omni_actors.worker.engine.Engine.compiling`."""

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load the weights of :attr:`parts` and warm up. Return the facts for the serving process: at least ``width``
        and ``height`` (the default size), ``multiple`` (the number that sizes must divide by), ``max_pixels``,
        ``steps`` (the default) and ``guidance``."""

    @abstractmethod
    def open(self, work: Work, image: ImageGeneration) -> Sequence[Cursor]:
        """Check a new request and return a cursor for each picture, without any tensor work.

        Raise :class:`OmniError` with 400 and ``param`` (the field's name in the section ``image``) for what the model
        cannot do. A size that the model cannot make is refused with the nearest size that it can.
        """

    def feed(self, cursors: Sequence[Cursor], port: str, payload: Payload | None, end: bool) -> None:
        """Take input on a port for a request's cursors: the client's pictures (kind ``image``), or ``conditioning`` or
        ``latent`` of another stage. The default keeps copies in :attr:`Cursor.inputs`; check here what a later step
        could fail on."""
        if payload is not None:
            kept = payload.copy()
            for cursor in cursors:
                cursor.inputs.setdefault(port, []).append(kept)

    def encode_key(self, cursor: Cursor) -> Hashable:
        """Return a key; cursors with equal keys may be encoded together. The cursors of one request are encoded as one
        (the first stands for all). By default each request is encoded alone."""
        return cursor

    @abstractmethod
    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        """Compute the conditioning of each request (:attr:`Cursor.conditioning`): embeddings of the prompts, and of the
        pictures of an edit."""

    @abstractmethod
    def begin(self, cursor: Cursor) -> None:
        """Begin the denoising of a cursor that has its conditioning: draw latents, make its scheduler and timesteps. An
        exception fails the request alone."""

    @abstractmethod
    def batch_key(self, cursor: Cursor) -> Hashable:
        """Return the key of the cursor's next step (shape class, expert, …); rows with equal keys may share a forward.
        May change from step to step."""

    def rows(self, cursor: Cursor) -> int:
        """Return how many rows of a forward the cursor's next step takes: its guidance branches."""
        return 1

    @abstractmethod
    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        """Run one forward (few, if cursors need different branches) for cursors with equal keys, and return the guided
        prediction of each. Each row has its own timestep, guidance and prompt length. Must change no cursor."""

    @abstractmethod
    def advance(self, cursor: Cursor, prediction: Any) -> None:
        """Take the prediction: one step of the cursor's own scheduler. Called once for each step, after the whole batch
        has been predicted. An exception fails the request alone."""

    def preview(self, cursor: Cursor, prediction: Any) -> Any:
        """Return a small picture (uint8 [height, width, 1, 3 or 4]) of the clean picture that this prediction points
        at, called before :meth:`advance`; ``None`` if the family has none."""
        return None

    def finite(self, cursor: Cursor) -> bool:
        """Return whether the latents of a cursor are finite numbers. Called once, behind the last step."""
        return True

    def decode_key(self, cursor: Cursor) -> Hashable:
        """Return a key; cursors with equal keys may be decoded together. By default each picture is decoded alone."""
        return cursor

    @abstractmethod
    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        """Compute the pixels of each cursor: an array uint8 [height, width, 1, 3 or 4], or for several layers a list of
        arrays."""

    def conditioning_payload(self, cursor: Cursor) -> Payload:
        """Return the payload of kind ``conditioning`` for a stage that denoises elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} does not run as stages of their own")

    def latent_payload(self, cursor: Cursor) -> Payload:
        """Return the payload of kind ``latent`` for a stage that decodes elsewhere."""
        raise NotImplementedError(f"{type(self).__name__} does not run as stages of their own")

    def restore(self, cursor: Cursor, payload: Payload) -> None:
        """Take the conditioning or the latents of another stage's payload into a cursor."""
        raise NotImplementedError(f"{type(self).__name__} does not run as stages of their own")

    def prove(self) -> None:
        """Run again a step that succeeded while loading, and raise its exception. Called when steps of all requests
        fail, to find out whether the model is broken."""

    def reserved_bytes(self) -> int:
        """Return the bytes of the device's memory that are not for pictures, beside what was taken after loading. Read
        after loading and after each query."""
        return 0

    def query(self, what: str, args: Mapping[str, Any]) -> Any:
        """Answer an operator's query. Raise :class:`OmniError` with 400 for wrong arguments or an unknown query."""
        if what in ("load_lora", "unload_lora"):
            raise invalid_request("This model takes no LoRA adapters.", "name")
        raise invalid_request(f"unknown query {what!r}")

    def counters(self) -> dict[str, float]:
        """Return the family's own counters, beside the engine's."""
        return {}

    def close(self, cursor: Cursor) -> None:
        """Drop what the adapter holds for a cursor, however it ended. Called once for each cursor."""
