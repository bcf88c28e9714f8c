"""The page of memory by which a worker shows that it moves: written by the worker, read by the serving process.

It is a sealed memfd whose descriptor the worker inherits (environment variable :data:`VARIABLE`). It begins with three
native 64-bit words, each written and read whole:

=====  =======================================================================================================
0      count of the turns of the worker's loop
1      what it is doing: an :class:`Activity`
2      when word 0 or 1 was last written: nanoseconds of ``CLOCK_MONOTONIC``, which all processes share
=====  =======================================================================================================

The words are not written together: who finds a worker late looks again a moment later before he believes it.
"""

from __future__ import annotations

import enum

PAGE_BYTES = 4096
WORDS = 3

VARIABLE = "OMNI_ACTORS_LIVENESS"
"""Environment variable with the number of the descriptor."""

HEARTBEAT_S = 1.0
"""A worker that holds requests takes a turn at least so often, also when all of them wait."""


class Activity(enum.IntEnum):
    """What a worker does, by which the plan says how long it may go without a sign of life."""

    LOADING = 0
    """From its start to its first turn. (The page begins as zeros.)"""
    WAITING = 1
    """For its sockets: for input, credit, or anything to do at all."""
    WORKING = 2
    """It takes in what came, steps, or writes."""
    COMPILING = 3
    """A step among a life's first :data:`FIRST_STEPS`, in which kernels may be compiled or graphs captured."""


FIRST_STEPS = 8
