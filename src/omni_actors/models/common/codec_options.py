"""The options of every stage that decodes codec frames window by window: for a declaration's ``defaults`` and their
documentation. Read by :mod:`omni_actors.worker.engines.codec`."""

from typing import Any

CODEC_DEFAULTS: dict[str, Any] = {
    "first_chunk_frames": 2,
    "min_chunk_frames": 4,
    "chunk_frames": 25,
    "left_context_frames": None,
    "ramp": True,
}

CODEC_DOC: dict[str, str] = {
    "first_chunk_frames": "Frames of an answer's first piece of sound; a request may ask for its own number.",
    "min_chunk_frames": "Fewest frames of the pieces behind it.",
    "chunk_frames": "Most frames of a piece, and its size where the ramp is off.",
    "left_context_frames": "Frames before a piece that are decoded again with it. With null its samples are as in the "
    "whole: by a memory of what came before, or by as many frames as that takes.",
    "ramp": "Let pieces grow while the listener has enough to play and shrink when it has not; otherwise each has "
    "chunk_frames.",
}

CODEC_TYPES: dict[str, type] = {"left_context_frames": int}

CODEC_LEAST: dict[str, float] = {
    "first_chunk_frames": 1,
    "min_chunk_frames": 1,
    "chunk_frames": 1,
    "left_context_frames": 0,
}
