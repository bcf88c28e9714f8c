"""The estimated cost of a request, before its prompt is tokenized: cheap, and never exact.

The unit of a stage is its token: of text, or of a codec's frames. By section:

===============  ======================================================================================================
section          estimated tokens
===============  ======================================================================================================
``prompt``       its token ids, else a quarter of its characters; with it, the request's media: :data:`MEDIA_TOKENS_S`
                 per second of audio and video, :data:`IMAGE_TOKENS` per image
``sampling``     ``n`` answers of ``max_tokens``; without that the stage's option ``max_tokens``, else
                 :data:`ANSWER_TOKENS`
``speech``       a frame per character of the text, at most ``max_tokens``; without a text :data:`ANSWER_TOKENS`
``transcription``  :data:`MEDIA_TOKENS_S` per second of the request's audio
``image``        for a stage that denoises (it has the option ``steps``): ``n`` × steps × latent tokens, with a token
                 for :data:`LATENT_PIXELS` pixels; for other stages a token per picture
===============  ======================================================================================================

A stage that reads none of these counts one token per request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.pipelines.subgraph import StagePart
from omni_actors.protocol.params import ImageGeneration, Prompt, Sampling, Speech
from omni_actors.protocol.request import Event, MediaChunk, Request, TextDelta

CHARACTERS_PER_TOKEN = 4
"""Characters per token of English text, with the vocabularies of today's models; most other languages have fewer."""

MEDIA_TOKENS_S = 25
"""Tokens per second of audio and video: between the 12.5 and 50 of the model families that are served."""

IMAGE_TOKENS = 576
"""Tokens of a picture of 672 × 672 pixels, with one token per 28 × 28 pixels."""

ANSWER_TOKENS = 256
"""Tokens of an answer without a bound on its length."""

LATENT_PIXELS = 256
"""Pixels of one latent token: a patch of 2 × 2 latents of 8 × 8 pixels each, as in today's large models."""

PICTURE_SIDE = 1024
"""Width and height of a picture whose size is left to the model, for the estimate."""

TEXT_OVERHEAD = 64
"""Bytes that a delta, or one of its logprobs, takes beside its text and tokens."""


def tokens_of(request: Request, part: StagePart) -> int:
    """Return the estimated tokens, prompt and answer, that the request brings to one stage; at least 1."""
    found = 0
    for name in part.sections:
        section = request.params.get(name)
        if isinstance(section, Prompt):
            given = section.token_ids
            found += len(given) if given is not None else size_of(section) // CHARACTERS_PER_TOKEN
            found += sum(_media_tokens(medium.modality, medium.seconds) for medium in request.media)
        elif isinstance(section, Sampling):
            bound = section.max_tokens if section.max_tokens is not None else part.stage.options.get("max_tokens")
            found += section.n * (ANSWER_TOKENS if bound is None else int(bound))
        elif isinstance(section, Speech):
            frames = ANSWER_TOKENS if section.text is None else len(section.text)
            found += frames if section.max_tokens is None else min(frames, section.max_tokens)
        elif isinstance(section, ImageGeneration):
            found += _image_tokens(section, part)
        elif name == "transcription":
            found += sum(_media_tokens(medium.modality, medium.seconds) for medium in request.media)
    return max(1, found)


def size_of(value: Any) -> int:
    """Return about how many bytes the texts and numbers in a value hold: one per character, eight per number or
    list."""
    size = 0
    todo = [value]  # a client may nest deeper than Python's stack
    while todo:
        it = todo.pop()
        if isinstance(it, str | bytes):
            size += len(it)
        elif isinstance(it, list | tuple):
            size += 8
            if it and type(it[0]) is int:  # token ids: thousands of them
                size += 8 * len(it)
            else:
                todo.extend(it)
        elif isinstance(it, dict):
            todo.extend(it)
            todo.extend(it.values())
        elif isinstance(it, msgspec.Struct):
            todo.extend(getattr(it, name) for name in it.__struct_fields__)
        elif it is not None and it is not False:
            size += 8
    return size


def event_bytes(event: Event) -> int:
    """Return about how many bytes an event holds while it waits for its receiver.

    The last event counts 0, and so do pictures, previews and progress: of these only as many can wait as the request
    itself has asked for pictures, and a picture alone may be larger than all else that may wait.
    """
    if type(event) is MediaChunk:
        return len(event.data) if event.modality != "image" else 0
    if type(event) is TextDelta:
        size = len(event.text) + 8 * len(event.token_ids) + TEXT_OVERHEAD
        if event.logprobs:
            size += sum(TEXT_OVERHEAD * (1 + len(logprob.top)) for logprob in event.logprobs)
        return size
    return 0


def _image_tokens(section: ImageGeneration, part: StagePart) -> int:
    options = part.stage.options
    if "steps" not in options:
        return section.n
    steps = section.steps if section.steps is not None else options["steps"] or 1
    side = options.get("size") or PICTURE_SIDE
    pixels = (section.width or side) * (section.height or side)
    return section.n * int(steps) * max(1, pixels // LATENT_PIXELS)


def _media_tokens(modality: str, seconds: float) -> int:
    return IMAGE_TOKENS if modality == "image" else round(seconds * MEDIA_TOKENS_S)
