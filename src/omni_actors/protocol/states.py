"""The two state machines of the house: of a request, and of a replica.

Whoever owns one moves it by :func:`advance`, which refuses what the tables do not allow: a second terminal event or a
replica that is ready twice is a bug that shows where it happens.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar


class RequestState(enum.Enum):
    """Of one request (one attempt).

    ``admitted``: bound to replicas and submitted. ``running``: its first output is there. The terminal states are what
    the caller sees, exactly one of them. ``released``: every stage has let go or died; admission counts it until then.
    """

    NEW = "new"
    ADMITTED = "admitted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"

    __hash__ = object.__hash__  # a member is only itself; Enum's own is a call in Python, ten of them for each request

    def __init__(self, word: str) -> None:
        self.live = word in ("admitted", "running")
        """Admitted and not terminal."""
        self.terminal = word in ("completed", "failed", "cancelled")


class ReplicaState(enum.Enum):
    """Of one replica: each incarnation goes from ``starting`` to ``dead``."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


_R = RequestState
_TERMINAL = frozenset(state for state in _R if state.terminal)

REQUEST: Mapping[RequestState, frozenset[RequestState]] = {
    _R.NEW: frozenset({_R.ADMITTED}),
    _R.ADMITTED: frozenset({_R.RUNNING, *_TERMINAL}),
    _R.RUNNING: _TERMINAL,
    _R.COMPLETED: frozenset({_R.RELEASED}),
    _R.FAILED: frozenset({_R.RELEASED}),
    _R.CANCELLED: frozenset({_R.RELEASED}),
    _R.RELEASED: frozenset(),
}

_P = ReplicaState

REPLICA: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _P.DEAD: frozenset({_P.STARTING}),
    _P.STARTING: frozenset({_P.READY, _P.DRAINING, _P.DEAD}),
    _P.READY: frozenset({_P.DRAINING, _P.DEAD}),
    _P.DRAINING: frozenset({_P.DEAD}),
}

S = TypeVar("S", RequestState, ReplicaState)


class IllegalTransition(Exception):
    """A bug in whoever owns the machine."""


def advance(current: S, following: S) -> S:
    """``following``, if the machine may go there from ``current``; raises :class:`IllegalTransition` otherwise."""
    table = REQUEST if isinstance(current, RequestState) else REPLICA
    if following not in table[current]:  # type: ignore[index]
        raise IllegalTransition(f"{type(current).__name__}: {current.value} → {following.value}")
    return following
