"""A table of things for clients between two queries: bounded, owned, and freed when forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from omni_actors.protocol.errors import ErrorInfo, OmniError, overloaded


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


@dataclass(slots=True)
class Held(Generic[T]):
    owner: str
    item: T
    deadline: float


def lost(what: str) -> OmniError:
    """Return the error for an item that is gone: the media process was replaced, or the item waited too long.

    The client's request was right, so the status is 503.
    """
    return OmniError(
        ErrorInfo(
            message=f"The {what} is no longer held by the media process; send the request again.",
            type="unavailable_error",
            code="media_lost",
            status=503,
            stage="media",
            retry_after=1.0,
        )
    )


class Table(Generic[T]):
    """Items by id, the least recently used first.

    ``ids`` gives numbers that no earlier incarnation of the process has given, so that a stale number never names
    another client's item. An item that is unused until its deadline is freed by the next :meth:`expire`.
    """

    def __init__(self, what: str, limit: int, idle_s: float, ids: Iterator[int], clock: Callable[[], float]) -> None:
        self.what = what
        self._limit = limit
        self._idle_s = idle_s
        self._ids = ids
        self._clock = clock
        self._held: OrderedDict[int, Held[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        return sum(held.item.nbytes for held in self._held.values())

    def add(self, owner: str, item: T, number: int | None = None) -> int:
        """Add an item. ``number`` puts an item back under its former id, for which there is always room."""
        if number is None:
            if len(self._held) >= self._limit:
                raise overloaded(
                    f"The media process has no room for another {self.what}: it holds {self._limit} already."
                )
            number = next(self._ids)
        self._held[number] = Held(owner, item, self._clock() + self._idle_s)
        return number

    def get(self, number: int) -> T:
        """Return an item, which becomes the most recently used."""
        held = self._held.get(number)
        if held is None:
            raise lost(self.what)
        held.deadline = self._clock() + self._idle_s
        self._held.move_to_end(number)
        return held.item

    def __contains__(self, number: int) -> bool:
        return number in self._held

    @property
    def items(self) -> list[T]:
        return [held.item for held in self._held.values()]

    def evict(self) -> bool:
        """Free the least recently used item; return whether there was one."""
        if self._held:
            self._held.popitem(last=False)
            return True
        return False

    def pop(self, number: int) -> Held[T]:
        held = self._held.pop(number, None)
        if held is None:
            raise lost(self.what)
        return held

    def drop(self, number: int) -> None:
        self._held.pop(number, None)

    def drop_owners(self, owners: frozenset[str]) -> None:
        for number in [number for number, held in self._held.items() if held.owner in owners]:
            del self._held[number]

    def due_s(self) -> float | None:
        """Seconds until the first item is to be freed; ``None`` when nothing is held."""
        first = next(iter(self._held.values()), None)
        return None if first is None else max(0.0, first.deadline - self._clock())

    def expire(self) -> int:
        """Free the items past their deadlines; return their number."""
        now = self._clock()
        count = 0
        while self._held:
            number, held = next(iter(self._held.items()))
            if held.deadline > now:
                break
            del self._held[number]
            count += 1
        return count
