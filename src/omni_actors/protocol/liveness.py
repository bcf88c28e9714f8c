"""The liveness page: memory in which a worker shows its progress, written by the worker, read by the serving process.

The page is a sealed memfd whose descriptor the worker inherits (environment variable :data:`VARIABLE`). The page begins
with three native 64-bit words, each written and read whole:

=====  =======================================================================================================
0      count of the turns of the worker's loop
1      the worker's present :class:`Activity`
2      time of the last write to word 0 or 1: nanoseconds of ``CLOCK_MONOTONIC``, shared by all processes
=====  =======================================================================================================

The words are not written together: a reader that finds a worker late reads again a moment later before it decides.
"""

from __future__ import annotations

import enum

PAGE_BYTES = 4096
WORDS = 3

VARIABLE = "OMNI_ACTORS_LIVENESS"
"""Environment variable with the number of the descriptor."""

HEARTBEAT_S = 1.0
"""Longest time between two turns of a worker that holds requests, in seconds, also when all requests wait."""


class Activity(enum.IntEnum):
    """The activity of a worker. The plan has a bound for each on the time without a sign of life."""

    LOADING = 0
    """From the start of the worker to the first turn. (The page begins as zeros.)"""
    WAITING = 1
    """Waiting for sockets: for input, credit, or any work at all."""
    WORKING = 2
    """Taking input in, computing a step, or writing."""
    COMPILING = 3
    """A step among the first :data:`FIRST_STEPS` of an incarnation, in which kernels may be compiled or graphs
    captured; later, a part of a step that the engine reports as such."""


FIRST_STEPS = 8
