"""The two state machines: of a request, and of a replica.

The owner of a machine moves it by :func:`advance`, which refuses transitions outside the tables: a second terminal
event, or a replica that is ready twice, is a bug that shows where it happens.

    >>> advance(RequestState.NEW, RequestState.ADMITTED)
    <RequestState.ADMITTED: 'admitted'>
    >>> advance(RequestState.COMPLETED, RequestState.RUNNING)
    Traceback (most recent call last):
    ...
    omni_actors.protocol.states.IllegalTransition: RequestState: completed → running
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar


class RequestState(enum.Enum):
    """The state of one request (one attempt).

    ``admitted``: bound to replicas and submitted. ``running``: the first output has arrived. The terminal states are
    the outcomes for the caller, exactly one per request. ``released``: every stage has released the request or died;
    admission counts the request until then.
    """

    NEW = "new"
    ADMITTED = "admitted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash is a call in Python, ten per request

    def __init__(self, word: str) -> None:
        self.live = word in ("admitted", "running")
        """Admitted and not terminal."""
        self.terminal = word in ("completed", "failed", "cancelled")


class ReplicaState(enum.Enum):
    """The state of one replica: each incarnation goes from ``starting`` to ``dead``."""

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
    """A bug in the owner of a state machine."""


def advance(current: S, following: S) -> S:
    """Return ``following``, if the machine may go there from ``current``. Raises :class:`IllegalTransition`
    otherwise."""
    table = REQUEST if isinstance(current, RequestState) else REPLICA
    if following not in table[current]:  # type: ignore[index]
        raise IllegalTransition(f"{type(current).__name__}: {current.value} → {following.value}")
    return following
