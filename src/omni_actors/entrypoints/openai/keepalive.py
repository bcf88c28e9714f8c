"""Comments in streams of server-sent events, so that no proxy takes a slow answer for a dead one."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import trio

from omni_actors.orchestrator import RequestStream
from omni_actors.protocol.request import Event, StepProgress

QUIET_S = 10.0
"""Longest time without a byte in a stream that has comments; common proxies cut after 30 or 60 seconds."""

PROGRESS_S = 1.0
"""Shortest time between two comments about progress."""

COMMENT = b": keep-alive\n\n"


async def with_comments(stream: RequestStream) -> AsyncGenerator[Event | bytes, None]:
    """Yield a request's events, and comments (bytes) while none comes.

    Progress of steps becomes comments, at most one in :data:`PROGRESS_S`; clients of server-sent events skip comments.
    """
    written = trio.current_time()
    while True:
        event: Event | None = None
        with trio.move_on_at(written + QUIET_S):
            try:
                event = await stream.receive()
            except trio.EndOfChannel:
                return
        now = trio.current_time()
        if event is None:
            yield COMMENT
        elif isinstance(event, StepProgress):
            if now - written < PROGRESS_S:
                continue
            yield b": step %d of %d of picture %d\n\n" % (event.step, event.steps, event.index)
        else:
            yield event
        written = now


async def first_event(stream: RequestStream) -> None:
    """Wait for a request's first event, so that an earlier failure has its own status; but no longer than
    :data:`QUIET_S`, so that the head of the answer is sent in time."""
    with trio.move_on_after(QUIET_S):
        await stream.peek()
