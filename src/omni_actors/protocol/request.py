"""The request from an entrypoint to the orchestrator, and the events that come back."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.protocol.errors import ErrorInfo

MAX_PRIORITY = 100
"""Priorities are whole numbers from minus this value to this value."""


class MediaRef(msgspec.Struct, frozen=True):
    """A decoded medium in the media process: ``id`` there, ``modality`` (``audio``, ``image`` or ``video``), its length
    in ``seconds`` (0 for an image), and the ``width`` and ``height`` of its pictures (0 for sound)."""

    id: int
    modality: str
    seconds: float = 0.0
    width: int = 0
    height: int = 0


class Request(msgspec.Struct, kw_only=True):
    """One request.

    ``task`` names one of the pipeline's tasks (``chat``, ``completion``, ``speech``, ``transcription``, …). ``inputs``
    are the modalities of the request's input, ``outputs`` the modalities that the client wants. ``params`` maps section
    names (:mod:`omni_actors.protocol.params`) to structs. ``media`` are clips, images and videos, in order, delivered
    to the entry stage of their modalities. ``id`` is the caller's label for logs and echoes; identity inside is never
    taken from ``id``. ``deadline_s`` is the whole budget in seconds from admission; ``None`` takes the deployment's
    default. ``affinity`` keeps requests with the same value on the same replicas while the replicas live. ``priority``
    decides the order of admission when not all requests fit: the lower the earlier. ``tenant`` is an opaque name of the
    request's owner: tenants share the capacity evenly, within their limit.

        >>> Request(task="chat", outputs=("text", "audio"), deadline_s=60.0).inputs
        ('text',)
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
    """The consumption and production of one stage for one request. Audio in seconds. ``steps`` counts the denoising
    steps of all pictures, ``skipped_steps`` those of them that a step cache answered."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    audio_input_s: float = 0.0
    audio_output_s: float = 0.0
    images: int = 0
    steps: int = 0
    skipped_steps: int = 0


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    """A token, its text (bytes, perhaps not valid UTF-8), its natural log-probability, and ``top``: alternatives as
    (token id, bytes, log-probability), best first."""

    token_id: int
    token: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class TextDelta(msgspec.Struct, array_like=True, frozen=True):
    """Text released by the stop matcher.

    ``index`` is the choice (``n`` > 1). The last delta of a choice has ``finish_reason`` (``stop``, ``length``).
    ``token_ids`` are the tokens sampled since the last delta: their text may still be held back, so ``text`` can be
    empty.
    """

    key: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    meta: dict[str, Any] | None = None
    """Stage-specific facts about this delta (for a transcription: its segments and detected language)."""
    usage: Usage | None = None
    """The stage's usage so far, from stages that count usage; tokens of this delta need not be included. The first
    delta of an attempt includes at least the tokens of the prompt; later deltas need not have a usage."""


class MediaChunk(msgspec.Struct, array_like=True, frozen=True):
    """A piece of client-visible audio, or a picture.

    Audio: ``data`` is little-endian signed 16-bit PCM, whole frames; ``meta`` has ``sample_rate`` (Hz) and
    ``channels``.

    Modality ``image``: ``data`` is an encoded picture. ``meta`` has ``index`` (the picture among the ``n`` of the
    request), ``format``, ``width``, ``height`` and ``seed``; a layer of a layered picture has ``layer``, counted from
    0, too. With ``preview`` (the step, counted from 1) the picture is a preview: a newer one replaces a preview of the
    same index that nobody has received, and it counts for nothing. A large picture comes from its worker in pieces,
    with ``piece`` (counted from 0) and ``pieces`` in ``meta``; a client gets the whole.
    """

    key: int
    modality: str
    meta: dict[str, Any]
    data: bytes


class StepProgress(msgspec.Struct, array_like=True, frozen=True):
    """Denoising step ``step`` of ``steps`` (counted from 1) of picture ``index`` is done. A newer event replaces an
    older one of the same picture that nobody has received."""

    key: int
    index: int
    step: int
    steps: int


class StageDone(msgspec.Struct, array_like=True, frozen=True):
    """The stage has produced all its output for this request."""

    key: int
    usage: Usage


class StageFailed(msgspec.Struct, array_like=True, frozen=True):
    """The stage gives up on this request."""

    key: int
    error: ErrorInfo


class Completed(msgspec.Struct, frozen=True):
    """The one successful terminal event. ``usage`` by stage name."""

    usage: dict[str, Usage]


Event = TextDelta | MediaChunk | StepProgress | Completed
"""An event that an entrypoint receives. Failure and cancellation are raised, not delivered."""
