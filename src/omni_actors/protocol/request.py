"""What an entrypoint asks of the orchestrator, and the events it gets back."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.protocol.errors import ErrorInfo

MAX_PRIORITY = 100
"""Priorities are whole numbers from minus this to this."""


class MediaRef(msgspec.Struct, frozen=True):
    """A decoded medium that waits in the media process: ``id`` there, ``modality`` (``audio``, ``image`` or ``video``),
    ``seconds`` of it (0 for an image)."""

    id: int
    modality: str
    seconds: float = 0.0


class Request(msgspec.Struct, kw_only=True):
    """One request.

    ``task`` names one of the pipeline's tasks (``chat``, ``completion``, ``speech``, ``transcription``, …).
    ``inputs`` are the modalities that the request brings, ``outputs`` those that the client wants.
    ``params`` maps section names (:mod:`omni_actors.protocol.params`) to structs.
    ``media`` are clips, images and videos, in order, delivered to the entry stage of their modalities.
    ``id`` is the caller's label for logs and echoes; identity inside is never taken from it.
    ``deadline_s`` is the whole budget in seconds from admission; ``None`` takes the deployment's default.
    ``affinity`` keeps requests with the same value on the same replicas while those live.
    ``priority`` decides who is admitted first when not all can be: the lower the earlier.
    ``tenant`` is on whose behalf it is made, an opaque name: tenants share what there is evenly, within their limit.
    """

    task: str
    inputs: tuple[str, ...] = ("text",)
    outputs: tuple[str, ...] = ("text",)
    params: dict[str, Any] = {}
    media: tuple[MediaRef, ...] = ()
    id: str | None = None
    deadline_s: float | None = None
    affinity: str | None = None
    priority: int = 0
    tenant: str = ""


class Usage(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What one stage consumed and produced for one request. Audio in seconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_input_s: float = 0.0
    audio_output_s: float = 0.0


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """A token, its text (bytes that need not be UTF-8), log-probability (natural), and ``top``:
    alternatives as (token id, bytes, log-probability), best first."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class TextDelta(msgspec.Struct, array_like=True, frozen=True):
    """Text that the stop matcher has released. ``index`` is the choice (``n`` > 1). The last delta of a choice has
    ``finish_reason`` (``stop``, ``length``). ``token_ids`` are the tokens sampled since the last delta: their text
    may still be held back, so ``text`` can be empty."""

    key: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    meta: dict[str, Any] | None = None
    """Stage-specific facts about this delta (for a transcription: its segments and detected language)."""
    usage: Usage | None = None
    """What the stage has used so far, where it counts that: tokens of which ``token_ids`` tell need not be in it. The
    first delta of an attempt tells at least those of the prompt; a delta behind it need not have it."""


class MediaChunk(msgspec.Struct, array_like=True, frozen=True):
    """A piece of client-visible audio (or later image, video, action). For audio: ``data`` is little-endian signed
    16-bit PCM, whole frames, ``meta`` has ``sample_rate`` (Hz) and ``channels``."""

    key: int
    modality: str
    meta: dict[str, Any]
    data: bytes


class StageDone(msgspec.Struct, array_like=True, frozen=True):
    """The stage has produced everything it will for this request."""

    key: int
    usage: Usage


class StageFailed(msgspec.Struct, array_like=True, frozen=True):
    """The stage gives up on this request."""

    key: int
    error: ErrorInfo


class Completed(msgspec.Struct, frozen=True):
    """The one successful terminal event. ``usage`` by stage name."""

    usage: dict[str, Usage]


Event = TextDelta | MediaChunk | Completed
"""What an entrypoint receives. Failure and cancellation are raised, not delivered."""
