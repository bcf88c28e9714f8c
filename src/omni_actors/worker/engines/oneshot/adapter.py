"""The adapter of a one-shot stage: the part of a model family that the one-shot engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.worker.checks import Specs
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.outputs import Piece, Result

S = TypeVar("S")
I = TypeVar("I")  # noqa: E741


class GenerationAdapter(ABC, Generic[S, I]):
    """A model family's side of a one-shot stage. ``S`` is its state of one request, ``I`` its item.

    One thread calls everything. :class:`OmniError` anywhere is the request's own failure; any other exception is logged
    with its traceback and becomes a 500 that names the stage. What a method returns is checked where it returns: a
    wrong value becomes a 500 that names the class, the method, what it returned and what was expected
    (:mod:`omni_actors.worker.returned`). None of these touches another request.
    """

    tensors: ClassVar[Specs] = {}
    """What emitted payloads must hold, by kind and tensor name. Every float tensor must be finite, declared or not."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load weights and warm up. Returns what the serving process should know (sample rate, voices, …)."""

    @abstractmethod
    def open(self, work: Work) -> tuple[S, Sequence[I]]:
        """A new request: validate its sections (raise :class:`OmniError` with 400 and ``param``) and give its state
        and the items that the sections alone make up. A request without ports gets no other."""

    def feed(self, state: S, port: str, payload: Payload | None, end: bool) -> Sequence[I]:
        """Input on a port, in order: the items that are complete now. Tensors are the adapter's own, writable. What a
        later batch could break on is looked at here (:func:`~omni_actors.worker.checks.check_input`)."""
        raise NotImplementedError(f"{type(self).__name__} takes no input on port {port!r}")

    def batch_key(self, item: I) -> Hashable:
        """Items with equal keys may run together. Asked once per item, when it is made."""
        return None

    @abstractmethod
    def run(self, items: Sequence[I]) -> Sequence[Result | OmniError]:
        """Run a batch: one result, or the item's own failure, for each item in order. It may be called again with the
        same items after it raised, so it changes no state before it is sure to return."""

    def more(self, state: S) -> Sequence[I]:
        """Items that follow the one that just ran, when it is through (its output may still be leaving). They come
        before the request's other items: what is too long for one step is cut, and the rest of it given here."""
        return ()

    def finish(self, state: S) -> Sequence[Piece]:
        """What follows the last output, when input has ended and every item is through."""
        return ()

    def prove(self) -> None:
        """Run an input of its own that it has run when it loaded, and raise what that raises. Called when items of all
        requests fail: is it the model?"""

    def counters(self) -> dict[str, float]:
        """The family's own, beside the engine's (:meth:`~omni_actors.worker.engine.Engine.counters`)."""
        return {}

    def close(self, state: S) -> None:
        """The request leaves, by whichever way. Called once for each state that :meth:`open` gave."""
