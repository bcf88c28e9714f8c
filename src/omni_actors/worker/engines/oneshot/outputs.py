"""What a one-shot model gives back, and its check at the stage's boundary (:mod:`omni_actors.worker.checks`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_actors.connectors.payload import Payload, pcm_payload
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.checks import OutputError, Specs, check_payload
from omni_actors.worker.engine import Work
from omni_actors.worker.returned import (
    iterable_of,
    kind_of,
    media_problem,
    payload_problem,
    text_problem,
    usage_problem,
    wrong,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One unit of output: at most one payload for the edges (one credit), and what the client sees with it. ``usage``,
    if any, is added to the request's: for what an iterator learns only as it computes. A piece may be empty."""

    payload: Payload | None = None
    media: MediaChunk | None = None
    text: TextDelta | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What one item became.

    ``pieces`` leave in order. A sequence is finished work: all of it goes as soon as credits allow. An iterator may
    still compute: the engine takes one piece from it per step, only when that piece can leave, and closes it when the
    request is aborted. ``usage`` is added to the request's.
    """

    pieces: Iterable[Piece] = ()
    usage: Usage = field(default_factory=Usage)


def pcm16(samples: np.ndarray[Any, Any]) -> bytes:
    """Float samples in [-1, 1], any shape, as little-endian signed 16-bit PCM in C order; louder ones are clipped.

    Raises :class:`OutputError` when they are not floats or not finite.
    """
    if samples.dtype.kind != "f":
        raise OutputError(f"audio samples are {samples.dtype}, not floats")
    if not np.isfinite(samples).all():
        raise OutputError("audio samples are not finite")
    data: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return data


def audio_piece(work: Work, samples: np.ndarray[Any, Any], sample_rate: int, **meta: Any) -> Piece:
    """Mono float32 samples, shape [n], in [-1, 1], for whoever wants them: the client, the next stage, or both."""
    if samples.ndim != 1 or samples.dtype != np.float32:
        raise OutputError(f"audio samples are {samples.dtype}{list(samples.shape)}, not float32[n]")
    media = None
    if work.visible:
        media = MediaChunk(work.key, "audio", {"sample_rate": sample_rate, "channels": 1, **meta}, pcm16(samples))
    return Piece(pcm_payload(samples, sample_rate, **meta) if work.routed else None, media)


def check_piece(owner: object, method: str, piece: Any, key: int, specs: Specs) -> Piece:
    """The piece, if it belongs to ``key`` and is what it must be; else raise :class:`OutputError`. ``owner.method``
    returned it."""
    if not isinstance(piece, Piece):
        raise wrong(owner, method, f"{kind_of(piece)} as a piece", "Piece")
    problems = (
        None if piece.payload is None else payload_problem(piece.payload),
        None if piece.text is None else text_problem(piece.text, key),
        None if piece.media is None else media_problem(piece.media, key),
        None if piece.usage is None else usage_problem(piece.usage),
    )
    for problem in problems:
        if problem is not None:
            raise wrong(owner, method, f"a Piece with {problem[0]}", problem[1])
    if piece.payload is not None:
        check_payload(piece.payload, specs.get(piece.payload.kind, {}))
    return piece


def check_result(owner: object, result: Any) -> Result:
    """The result that ``owner.run`` returned for an item, if it is one: its pieces are looked at as they leave."""
    if not isinstance(result, Result):
        raise wrong(owner, "run", f"{kind_of(result)} for an item", "Result or OmniError")
    iterable_of(owner, "run", result.pieces, "a Result whose pieces are ", "an iterable of Piece")
    if (problem := usage_problem(result.usage)) is not None:
        raise wrong(owner, "run", f"a Result with {problem[0]} as usage", problem[1])
    return result


def add_usage(a: Usage, b: Usage) -> Usage:
    """The sum, field by field."""
    return Usage(
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        cached_tokens=a.cached_tokens + b.cached_tokens,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        audio_input_s=math.fsum((a.audio_input_s, b.audio_input_s)),
        audio_output_s=math.fsum((a.audio_output_s, b.audio_output_s)),
    )
