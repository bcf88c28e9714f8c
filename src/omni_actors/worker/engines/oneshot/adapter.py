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
    """A model family's side of a one-shot stage. ``S`` is the family's state of one request, ``I`` its item.

    One thread calls all methods. An :class:`OmniError` is the request's own failure; any other exception is logged with
    its traceback and becomes a 500 that names the stage. Return values are checked at once: a wrong value becomes a 500
    that names the class, the method, the value and the expected type (:mod:`omni_actors.worker.returned`). No failure
    touches another request.
    """

    tensors: ClassVar[Specs] = {}
    """The tensors of emitted payloads, by kind and tensor name. Every float tensor must be finite, declared or not."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    @abstractmethod
    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load weights and warm up. Return the facts for the serving process (sample rate, voices, …)."""

    @abstractmethod
    def open(self, work: Work) -> tuple[S, Sequence[I]]:
        """Open a new request: validate its sections, and return its state and the items that its sections make up.

        A request without ports gets no other items. Raise :class:`OmniError` with 400 and ``param`` for wrong sections.
        """

    def feed(self, state: S, port: str, payload: Payload | None, end: bool) -> Sequence[I]:
        """Take input on a port, in order, and return the items that are complete now.

        The tensors belong to the adapter and are writable. Check here what a later batch could fail on
        (:func:`~omni_actors.worker.checks.check_input`).
        """
        raise NotImplementedError(f"{type(self).__name__} takes no input on port {port!r}")

    def batch_key(self, item: I) -> Hashable:
        """Return a key of the item; items with equal keys may run together. Called once, when the item is made."""
        return None

    @abstractmethod
    def run(self, items: Sequence[I]) -> Sequence[Result | OmniError]:
        """Run a batch, and return a result, or the item's own failure, for each item in order.

        ``run`` may be called again with the same items after it raised, so it must change no state before it is sure to
        return.
        """

    def more(self, state: S) -> Sequence[I]:
        """Return items that follow the item that just ran, while its output may still be leaving.

        These items come before the request's other items. So an item that is too long for one step is cut, and the rest
        is returned here.
        """
        return ()

    def finish(self, state: S) -> Sequence[Piece]:
        """Return the pieces behind the last output, after input has ended and every item has run."""
        return ()

    def prove(self) -> None:
        """Run again an input that succeeded while loading, and raise its exception. Called when items of all requests
        fail, to find out whether the model is broken."""

    def counters(self) -> dict[str, float]:
        """Return the family's own counters, beside the engine's
        (:meth:`~omni_actors.worker.engine.Engine.counters`)."""
        return {}

    def close(self, state: S) -> None:
        """Close a request, however it ended. Called once for each state that :meth:`open` returned."""
