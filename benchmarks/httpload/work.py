"""The work of every server in the comparison: the same bytes in, the same bytes out."""

from __future__ import annotations

import time

import msgspec

PACE_S = 0.05
"""Between two tokens of a paced stream."""

FRAME = bytes(1920)
"""40 ms of sound at 24 kHz, 16 bits: what a server pushes over a WebSocket."""

FRAMES_AT_ONCE = 32
"""A pushing handler lets others run after so many frames."""

BODY = b'{"id":"req-0123456789abcdef","input":"The quick brown fox jumps over the lazy dog.","max_tokens":64}'


class Ask(msgspec.Struct):
    id: str
    input: str
    max_tokens: int = 16


def answer(id: str, text: str, max_tokens: int) -> dict[str, object]:
    return {"id": id, "tokens": min(len(text), max_tokens)}


def token() -> bytes:
    """Return a chunk of a streamed chat completion, with the time of its making."""
    return (
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","choices":'
        b'[{"index":0,"delta":{"content":"@%d;"},"finish_reason":null}]}\n\n' % time.monotonic_ns()
    )


def frame() -> bytes:
    """Return a frame with the time of its making."""
    return time.monotonic_ns().to_bytes(8, "little") + FRAME[8:]
