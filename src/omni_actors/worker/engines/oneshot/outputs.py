"""The results of a one-shot model, and their checks at the stage's boundary (:mod:`omni_actors.worker.checks`)."""

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
    """One unit of output: at most one payload for the edges (one credit), and its client-visible output.

    ``usage``, if any, is added to the request's usage: for facts that an iterator learns only while computing. A piece
    may be empty.
    """

    payload: Payload | None = None
    media: MediaChunk | None = None
    text: TextDelta | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one item.

    ``pieces`` leave in order. A sequence is finished work, and leaves as soon as credits allow. An iterator may still
    compute: the engine takes one piece per step, only when the piece can leave, and closes the iterator when the
    request is aborted. ``usage`` is added to the request's usage.
    """

    pieces: Iterable[Piece] = ()
    usage: Usage = field(default_factory=Usage)


def pcm16(samples: np.ndarray[Any, Any]) -> bytes:
    """Convert float samples in [-1, 1], any shape, to little-endian signed 16-bit PCM in C order.

    Louder samples are clipped. Raises :class:`OutputError` for samples that are not floats or not finite.
    """
    if samples.dtype.kind != "f":
        raise OutputError(f"audio samples are {samples.dtype}, not floats")
    if not np.isfinite(samples).all():
        raise OutputError("audio samples are not finite")
    data: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return data


def audio_piece(work: Work, samples: np.ndarray[Any, Any], sample_rate: int, **meta: Any) -> Piece:
    """Make a piece of mono float32 samples [n] in [-1, 1] for the client, the next stage, or both, as requested."""
    if samples.ndim != 1 or samples.dtype != np.float32:
        raise OutputError(f"audio samples are {samples.dtype}{list(samples.shape)}, not float32[n]")
    media = None
    if work.visible:
        media = MediaChunk(work.key, "audio", {"sample_rate": sample_rate, "channels": 1, **meta}, pcm16(samples))
    return Piece(pcm_payload(samples, sample_rate, **meta) if work.routed else None, media)


def check_piece(owner: object, method: str, piece: Any, key: int, specs: Specs) -> Piece:
    """Return a piece that ``owner.method`` returned, after a check.

    Raises :class:`OutputError` for a piece of a wrong type, with wrong contents, or of another request than ``key``.
    """
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
    """Return the result that ``owner.run`` returned, after a check. The pieces are checked when they leave."""
    if not isinstance(result, Result):
        raise wrong(owner, "run", f"{kind_of(result)} for an item", "Result or OmniError")
    iterable_of(owner, "run", result.pieces, "a Result whose pieces are ", "an iterable of Piece")
    if (problem := usage_problem(result.usage)) is not None:
        raise wrong(owner, "run", f"a Result with {problem[0]} as usage", problem[1])
    return result


def add_usage(a: Usage, b: Usage) -> Usage:
    """Return the sum of two usages, field by field."""
    return Usage(
        prompt_tokens=a.prompt_tokens + b.prompt_tokens,
        cached_tokens=a.cached_tokens + b.cached_tokens,
        completion_tokens=a.completion_tokens + b.completion_tokens,
        audio_input_s=math.fsum((a.audio_input_s, b.audio_input_s)),
        audio_output_s=math.fsum((a.audio_output_s, b.audio_output_s)),
        images=a.images + b.images,
        steps=a.steps + b.steps,
        skipped_steps=a.skipped_steps + b.skipped_steps,
    )
