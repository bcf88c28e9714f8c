"""Layout of a chat as an omni model's input: token ids, M-RoPE positions, and the places of each medium's features.

Pure functions with the results of the families' processors and their models' ``get_rope_index`` in transformers. Unlike
those functions they take any mixture, also of videos with and without a sound track.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from omni_actors.models.common.features import Features
from omni_actors.models.common.multimodal import Expanded, Medium, Modality, Placement, root_of, with_media
from omni_actors.models.common.text import Text
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Layout(ABC):
    """The layout rules of a checkpoint: the ids of its placeholders and of the marks around sound, the patches along a
    side per token, and the positions per second. A family adds the places of pictures."""

    image: int
    video: int
    audio: int
    audio_start: int
    audio_end: int
    merge: int
    positions_per_s: float

    @abstractmethod
    def grid(self, medium: Medium) -> Floats:
        """Return positions [3, tokens] of an image or a video, counted from its first token's."""

    @abstractmethod
    def with_sound(self, canvas: Canvas, medium: Medium, later: Sequence[Medium]) -> None:
        """Put a video with its sound track, and the marks around it. ``later`` are the media behind it."""

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset((self.image, self.video, self.audio))

    def placeholder(self, modality: Modality) -> int:
        return {"image": self.image, "video": self.video, "audio": self.audio}[modality]


class Canvas:
    """Tokens with their positions, placed one after the other."""

    def __init__(self) -> None:
        self.length = 0
        self.free = np.float32(0)
        """The position of the next text."""
        self._tokens: list[Ints] = []
        self._positions: list[Floats] = []
        self._placements: list[Placement] = []

    def put(self, tokens: Ints, positions: Floats, last: np.float32 | None = None) -> None:
        """Append tokens with ``positions`` [3, tokens]. Text continues behind ``last``, by default the highest
        position."""
        if len(tokens):
            self._tokens.append(tokens)
            self._positions.append(positions)
            self.length += len(tokens)
            self.free = (positions.max() if last is None else last) + np.float32(1)

    def text(self, tokens: Sequence[int] | Ints) -> None:
        along = np.arange(len(tokens), dtype=np.float32) + self.free
        self.put(np.asarray(tokens, np.int64), np.broadcast_to(along, (3, len(tokens))))

    def place(self, medium: Medium, tensor: Literal["features", "audio"], places: Ints) -> None:
        """Assign rows of the medium to the tokens ``places``, counted from the next token."""
        self._placements.append(Placement(medium, tensor, torch.from_numpy(places + self.length)))

    def done(self, root: bytes) -> Expanded:
        if not self._tokens:
            return Expanded([], torch.zeros(3, 0), 0.0)
        along = np.concatenate(self._positions, axis=1)
        return Expanded(
            np.concatenate(self._tokens).tolist(),
            torch.from_numpy(along),
            float(along.max() + np.float32(1) - np.float32(self.length)),
            tuple(self._placements),
            root,
        )


def expand(text: Text, layout: Layout, prompt: Prompt, media: Sequence[Medium] = ()) -> Expanded:
    """Return the input for a prompt whose media parts name, by ``index``, these media.

    Raises :class:`OmniError` (400) when the chat template refuses the messages, a part names no medium of its modality,
    or the text writes a medium's placeholder itself. A prompt of token ids or of plain text has no media.
    """
    parts: list[Medium] = []
    ids: list[int]
    if prompt.token_ids is not None:
        ids = prompt.token_ids
    elif prompt.text is not None:
        ids = text.tokenizer.encode(prompt.text)
    else:
        messages, parts = with_media(prompt.messages or [], {medium.index: medium for medium in media})
        ids = text.encode_chat(prompt, messages)
    return lay_out(layout, ids, parts)


def lay_out(layout: Layout, ids: Sequence[int], media: Sequence[Medium]) -> Expanded:
    """Return the input for tokens in which each medium, in order, is one placeholder. Raises :class:`OmniError` (400)
    when the placeholders do not match the media."""
    canvas = Canvas()
    placeholders = layout.placeholders
    remaining = list(media)
    begun = 0
    for at, token in enumerate(ids):
        if token not in placeholders:
            continue
        if not remaining or layout.placeholder(remaining[0].modality) != token:
            raise invalid_request("The prompt has a placeholder where there is no such medium.", param="messages")
        medium = remaining.pop(0)
        canvas.text(ids[begun:at])
        begun = at + 1
        if medium.audio_tokens:
            layout.with_sound(canvas, medium, remaining)
            continue
        canvas.place(medium, "features", np.arange(medium.tokens))
        if medium.modality == "audio":
            canvas.text([token] * medium.tokens)
        else:
            canvas.put(np.full(medium.tokens, token, np.int64), layout.grid(medium) + canvas.free)
    if remaining:
        raise invalid_request("The chat template leaves out some of the messages' media.", param="messages")
    canvas.text(ids[begun:])
    return canvas.done(root_of(media))


def collapse(layout: Layout, tokens: Sequence[int], media: Sequence[Medium]) -> list[int]:
    """Return tokens in which each medium, in order, is one placeholder again: the inverse of :func:`lay_out`."""
    made: list[int] = []
    at = 0
    for medium, first in zip(media, begins(layout, tokens, media), strict=True):
        heard = bool(medium.audio_tokens)  # the video's sound is between two marks, which the prompt did not have
        made += tokens[at : first - heard]
        made.append(layout.placeholder(medium.modality))
        at = first + medium.tokens + medium.audio_tokens + heard
    return [*made, *tokens[at:]]


def begins(layout: Layout, tokens: Sequence[int], media: Sequence[Medium]) -> list[int]:
    """Return the first token of each medium, in order."""
    placeholders = layout.placeholders
    found: list[int] = []
    at = 0
    for medium in media:
        while tokens[at] not in placeholders:
            at += 1
        found.append(at)
        at += medium.tokens + medium.audio_tokens
    return found


def positions_of(layout: Layout, tokens: Sequence[int], media: Sequence[Medium], device: torch.device) -> Features:
    """Return the positions of tokens that are laid out already, without features, for a talker."""
    made = lay_out(layout, collapse(layout, tokens, media), media)
    positions = made.positions.to(device)
    return Features(np.empty(0, np.int64), positions[:0], positions, made.rope_delta)


def grid_times(layout: Layout, medium: Medium) -> Floats:
    """Return positions [3, tokens] of an image or a video, counted from its first token's; times are not rounded."""
    t, h, w = medium.grid[0], medium.grid[1] // layout.merge, medium.grid[2] // layout.merge
    if t * h * w != medium.tokens:
        raise ValueError(f"a grid of {medium.grid} patches has {t * h * w} tokens, not {medium.tokens}")
    seconds = np.float32(medium.second_per_grid if medium.modality == "video" else 1)
    axes = np.indices((t, h, w), dtype=np.float32).reshape(3, -1)
    axes[0] = axes[0] * seconds * np.float32(layout.positions_per_s)
    return axes
