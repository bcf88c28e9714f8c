"""What a target is, and what a finding is."""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

One = Callable[[bytes], None]
"""Runs one input. Whatever it raises is a finding: what may be raised, it catches itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """``opened`` is entered once for a whole run. ``may`` says what is no finding, for a person to read; ``words`` are
    what the mutator puts in, beside what ``seeds`` bring."""

    name: str
    may: str
    opened: Callable[[], AbstractContextManager[One]]
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...] = field(default=())
    most: int = 4096
    """Bytes of an input."""


def plain(one: One) -> Callable[[], AbstractContextManager[One]]:
    """A target that needs nothing to be opened."""

    @contextmanager
    def opened() -> Iterator[One]:
        yield one

    return opened


@contextmanager
def silent(log: logging.Logger) -> Iterator[None]:
    """What says something of every other input."""
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def chance(data: bytes) -> random.Random:
    """Chance that is the same whenever the input is."""
    return random.Random(zlib.crc32(data))


def cuts(data: bytes, most: int = 8) -> list[bytes]:
    """The input in a few pieces, at places that depend on it alone."""
    dice = chance(data)
    places = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randrange(most))) if data else []
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]
