"""From a chat to the thinker's input: token ids, M-RoPE positions, and where each medium's features go.

Pure functions that give what transformers' Qwen3-Omni processor and its model's ``get_rope_index`` give. Unlike those
they take any mixture, also of videos with and without a sound track.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from omni_actors.models.causal_lm.prompts import render
from omni_actors.models.common.multimodal import Expanded, Medium, Modality, Placement, root_of, with_media
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a checkpoint's prompts are made of: the ids of its special tokens, how many patches along a side make one
    token, and how many positions a second is."""

    image: int
    video: int
    audio: int
    vision_start: int
    vision_end: int
    audio_start: int
    audio_end: int
    merge: int
    positions_per_s: float

    @classmethod
    def of(cls, config: Any, tokenizer: Any) -> Layout:
        """Of a thinker's config and the folder's tokenizer."""
        return cls(
            image=config.image_token_id,
            video=config.video_token_id,
            audio=config.audio_token_id,
            vision_start=config.vision_start_token_id,
            vision_end=tokenizer.convert_tokens_to_ids(tokenizer.vision_eos_token),
            audio_start=config.audio_start_token_id,
            audio_end=tokenizer.convert_tokens_to_ids(tokenizer.audio_eos_token),
            merge=config.vision_config.spatial_merge_size,
            positions_per_s=config.position_id_per_seconds,
        )

    @property
    def placeholders(self) -> frozenset[int]:
        return frozenset((self.image, self.video, self.audio))

    def placeholder(self, modality: Modality) -> int:
        return {"image": self.image, "video": self.video, "audio": self.audio}[modality]


def expand(tokenizer: Any, layout: Layout, prompt: Prompt, media: Sequence[Medium] = ()) -> Expanded:
    """The input for a prompt whose media parts name, by ``index``, these media.

    Raises :class:`OmniError` (400) when the chat template refuses the messages, a part names no medium of its modality,
    or the text writes a medium's placeholder itself. A prompt of token ids or of plain text has no media.
    """
    parts: list[Medium] = []
    ids: list[int]
    if prompt.token_ids is not None:
        ids = prompt.token_ids
    elif prompt.text is not None:
        ids = tokenizer.encode(prompt.text)
    else:
        messages, parts = with_media(prompt.messages or [], {medium.index: medium for medium in media})
        ids = tokenizer.encode(render(tokenizer, prompt, messages), add_special_tokens=False)
    return lay_out(layout, ids, parts)


def lay_out(layout: Layout, ids: Sequence[int], media: Sequence[Medium], *, talker: bool = False) -> Expanded:
    """The input for tokens in which each medium, in order, is one placeholder. Raises :class:`OmniError` (400) when the
    placeholders are not those of the media.

    With ``talker`` positions are as transformers' ``generate`` gives them to the talker. It does not tell it that a
    video's sound stands among its pictures, so these are counted like text, unless an image follows.
    """
    tokens: list[Ints] = []
    positions: list[Floats] = []
    placements: list[Placement] = []
    remaining = list(media)
    length, free, begun = 0, np.float32(0), 0  # ``free``: the position of the next text

    def put(piece: Ints, along: Floats, after: np.float32 | None = None) -> None:
        nonlocal length, free
        if len(piece):
            tokens.append(piece)
            positions.append(along)
            length += len(piece)
            free = (along.max() if after is None else after) + np.float32(1)

    def put_text(piece: Sequence[int] | Ints) -> None:
        along = np.arange(len(piece), dtype=np.float32) + free
        put(np.asarray(piece, np.int64), np.broadcast_to(along, (3, len(piece))))

    placeholders = layout.placeholders
    for at, token in enumerate(ids):
        if token not in placeholders:
            continue
        if not remaining or layout.placeholder(remaining[0].modality) != token:
            raise invalid_request("The prompt has a placeholder where there is no such medium.", param="messages")
        medium = remaining.pop(0)
        put_text(ids[begun:at])
        begun = at + 1
        kinds: dict[Literal["features", "audio"], Ints] = {}
        if medium.modality == "audio":
            kinds["features"] = np.arange(medium.tokens)
            at_token = length
            put_text([token] * medium.tokens)
        elif not medium.audio_tokens:
            kinds["features"] = np.arange(medium.tokens)
            at_token = length
            put(np.full(medium.tokens, token, np.int64), _grid(layout, medium) + free)
        else:
            put_text([layout.audio_start])
            at_token = length
            heard = _sound_track(layout, medium)
            kinds["features"], kinds["audio"] = np.flatnonzero(~heard), np.flatnonzero(heard)
            both = np.where(heard, layout.audio, layout.video)
            if talker and not any(later.modality == "image" for later in remaining):
                put_text(both)
            else:
                put(both, *_with_sound(layout, medium, free))
            put_text([layout.audio_end])
        placements += [Placement(medium, name, torch.from_numpy(rows + at_token)) for name, rows in kinds.items()]
    if remaining:
        raise invalid_request("The chat template leaves out some of the messages' media.", param="messages")
    put_text(ids[begun:])
    if not tokens:
        return Expanded([], torch.zeros(3, 0), 0.0)
    along = np.concatenate(positions, axis=1)
    return Expanded(
        np.concatenate(tokens).tolist(),
        torch.from_numpy(along),
        float(along.max() + np.float32(1) - np.float32(length)),
        tuple(placements),
        root_of(media),
    )


def collapse(layout: Layout, tokens: Sequence[int], media: Sequence[Medium]) -> list[int]:
    """Tokens in which each medium, in order, is one placeholder again: :func:`lay_out` undone."""
    made: list[int] = []
    remaining = iter(media)
    at = 0
    while at < len(tokens):
        if tokens[at] not in layout.placeholders:
            made.append(tokens[at])
            at += 1
            continue
        medium = next(remaining)
        at += medium.tokens + medium.audio_tokens
        if medium.modality == "video" and medium.audio_tokens:
            made.pop()  # the start of its sound track
            at += 1  # and the end
        made.append(layout.placeholder(medium.modality))
    return made


def places(layout: Layout, tokens: Sequence[int], media: Sequence[Medium]) -> list[int]:
    """Where each medium, in order, has its first token."""
    found: list[int] = []
    at = 0
    for medium in media:
        while tokens[at] not in layout.placeholders:
            at += 1
        found.append(at)
        at += medium.tokens + medium.audio_tokens
    return found


def _grid(layout: Layout, medium: Medium) -> Floats:
    """Positions [3, tokens] of an image or a video, counted from its first token's."""
    t, h, w = medium.grid[0], medium.grid[1] // layout.merge, medium.grid[2] // layout.merge
    if t * h * w != medium.tokens:
        raise ValueError(f"a grid of {medium.grid} patches has {t * h * w} tokens, not {medium.tokens}")
    seconds = np.float32(medium.second_per_grid if medium.modality == "video" else 1)
    axes = np.indices((t, h, w), dtype=np.float32).reshape(3, -1)
    axes[0] = axes[0] * seconds * np.float32(layout.positions_per_s)
    return axes


def _sound_track(layout: Layout, medium: Medium) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of a video's tokens are of its sound track. Each grid comes at its time, the sound up to the next grid
    behind it; a token of sound is one position."""
    per_grid = medium.tokens // medium.grid[0]
    seen = np.repeat(np.arange(medium.grid[0]), per_grid) * medium.second_per_grid * layout.positions_per_s
    return _in_time(seen, np.arange(medium.audio_tokens, dtype=np.float64)) >= medium.tokens


def _with_sound(layout: Layout, medium: Medium, start: np.float32) -> tuple[Floats, np.float32]:
    """Positions [3, tokens] of a video with its sound track from ``start`` on, and the one behind which text goes on:
    the highest of what comes last, be it pictures or sound, which need not be the highest of all."""
    video = _grid(layout, medium) + start
    sound = np.broadcast_to(np.arange(medium.audio_tokens, dtype=np.float32) + start, (3, medium.audio_tokens))
    order = _in_time(video[0], sound[0])
    along = np.concatenate((video, sound), axis=1)[:, order]
    heard = order >= medium.tokens
    others = np.flatnonzero(heard != heard[-1])
    return along, along[:, others[-1] + 1 :].max()


def _in_time(video: np.ndarray[Any, Any], sound: np.ndarray[Any, Any]) -> Ints:
    """The order of two ascending rows of times as one: places in their concatenation. Pictures come before the sound of
    the same time."""
    return np.argsort(np.concatenate((video, sound)), kind="stable")
