"""Events of which only the latest matters: previews of a picture, and the progress of its steps."""

from __future__ import annotations

from collections import deque

from omni_actors.orchestrator.estimate import event_bytes
from omni_actors.protocol.request import Event, MediaChunk, StepProgress


def supersede(events: deque[Event], event: MediaChunk | StepProgress) -> int | None:
    """Put an event in the place of an older one of the same picture that waits for its receiver.

    The events of a picture that a newer preview or the finished picture makes useless are replaced too, so that a slow
    reader never holds more than one preview and one progress of a picture.

    Args:
        events: The events that wait.
        event: A preview, a finished picture, or the progress of a step; sound replaces nothing.

    Returns:
        The bytes that wait more (or less), or ``None`` if there is no older event.
    """
    kind = type(event)
    if type(event) is StepProgress:
        index = event.index
    elif type(event) is MediaChunk and event.modality == "image":
        index = event.meta["index"]
    else:
        return None
    for place, older in enumerate(events):
        if type(older) is not kind:
            continue
        if type(older) is StepProgress:
            if older.index != index:
                continue
        elif type(older) is MediaChunk and not (older.meta.get("preview") and older.meta.get("index") == index):
            continue
        events[place] = event
        return event_bytes(event) - event_bytes(older)
    return None
