"""Events of which only the latest matters: previews of a picture, and the progress of its steps."""

from __future__ import annotations

from collections import deque

from omni_actors.protocol.request import Event, MediaChunk, StepProgress


def supersede(events: deque[Event], event: Event) -> None:
    """Drop the waiting events that a new event makes useless.

    A preview replaces the preview of the same picture, progress the progress, and a finished picture both, so that a
    slow reader never holds more than one preview and one progress of a picture. Sound replaces nothing.

    Args:
        events: The events that wait for their receiver.
        event: The new event, which is not among them yet.
    """
    if type(event) is StepProgress:
        index, preview, progress = event.index, False, True
    elif type(event) is MediaChunk and event.modality == "image":
        index, preview, progress = event.meta.get("index", 0), True, not event.meta.get("preview")
    else:
        return
    for place in range(len(events) - 1, -1, -1):
        older = events[place]
        if type(older) is StepProgress:
            useless = progress and older.index == index
        else:
            useless = preview and type(older) is MediaChunk and _is_preview_of(older, index)
        if useless:
            del events[place]


def _is_preview_of(chunk: MediaChunk, index: int) -> bool:
    return chunk.modality == "image" and bool(chunk.meta.get("preview")) and chunk.meta.get("index", 0) == index
