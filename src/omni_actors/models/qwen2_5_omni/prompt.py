"""From a chat to the thinker's input: token ids, M-RoPE positions, and where each medium's features go.

Pure functions that give what transformers' Qwen2.5-Omni processor and its model's ``get_rope_index`` give. Unlike those
they take any mixture, also of videos with and without a sound track.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from omni_actors.models.causal_lm.prompts import render
from omni_actors.models.common.multimodal import Expanded, Medium, Modality, Placement, root_of, with_media
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a checkpoint's prompts are made of: the ids of its special tokens, how many patches along a side make one
    token, how many positions a second is, and after how many seconds pictures and sound of a video take turns."""

    image: int
    video: int
    audio: int
    audio_start: int
    audio_end: int
    merge: int
    positions_per_s: float
    chunk_s: float

    @classmethod
    def of(cls, config: Any, tokenizer: Any) -> Layout:
        """Of a thinker's config and the folder's tokenizer."""
        return cls(
            image=config.image_token_index,
            video=config.video_token_index,
            audio=config.audio_token_index,
            audio_start=config.audio_start_token_id,
            audio_end=tokenizer.convert_tokens_to_ids(tokenizer.audio_eos_token),
            merge=config.vision_config.spatial_merge_size,
            positions_per_s=config.position_id_per_seconds,
            chunk_s=config.seconds_per_chunk,
        )

    def timed_by(self, config: Any) -> Layout:
        """The same with another part's notion of time."""
        return replace(self, positions_per_s=config.position_id_per_seconds, chunk_s=config.seconds_per_chunk)

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
    if prompt.token_ids is not None:
        ids, parts = list(prompt.token_ids), list[Medium]()
    elif prompt.text is not None:
        ids, parts = tokenizer.encode(prompt.text), []
    else:
        messages, parts = with_media(prompt.messages or [], {medium.index: medium for medium in media})
        ids = tokenizer.encode(render(tokenizer, prompt, messages), add_special_tokens=False)
    return lay_out(layout, ids, parts)


class _Canvas:
    """Tokens with their positions, as they are put one behind the other."""

    def __init__(self) -> None:
        self.length = 0
        self.free = 0
        """The position of the next text."""
        self._tokens: list[Ints] = []
        self._positions: list[Ints] = []

    def put(self, tokens: Ints, positions: Ints) -> None:
        if len(tokens):
            self._tokens.append(tokens)
            self._positions.append(positions)
            self.length += len(tokens)
            self.free = int(positions.max()) + 1

    def text(self, tokens: Sequence[int]) -> None:
        along = np.arange(len(tokens)) + self.free
        self.put(np.asarray(tokens, np.int64), np.broadcast_to(along, (3, len(tokens))))

    def beside(self, token: int) -> None:
        """A token at the position of the last one."""
        self.put(np.array([token]), np.full((3, 1), self.free - 1))

    def done(self, placements: Sequence[Placement], root: bytes) -> Expanded:
        if not self._tokens:
            return Expanded([], torch.zeros(3, 0), 0.0)
        along = np.concatenate(self._positions, 1)
        delta = float(along.max() + 1 - self.length)
        tokens = np.concatenate(self._tokens).tolist()
        return Expanded(tokens, torch.from_numpy(along.astype(np.float32)), delta, tuple(placements), root)


def lay_out(layout: Layout, ids: Sequence[int], media: Sequence[Medium]) -> Expanded:
    """The input for tokens in which each medium, in order, is one placeholder. Raises :class:`OmniError` (400) when the
    placeholders are not those of the media."""
    canvas = _Canvas()
    placements: list[Placement] = []
    remaining = list(media)
    begun = 0

    def place(medium: Medium, name: Literal["features", "audio"], at: int, rows: Ints) -> None:
        placements.append(Placement(medium, name, torch.from_numpy(rows + at)))

    for at, token in enumerate(ids):
        if token not in layout.placeholders:
            continue
        if not remaining or layout.placeholder(remaining[0].modality) != token:
            raise invalid_request("The prompt has a placeholder where there is no such medium.", param="messages")
        medium = remaining.pop(0)
        canvas.text(ids[begun:at])
        begun = at + 1
        rows = np.arange(medium.tokens)
        if medium.modality == "audio":
            place(medium, "features", canvas.length, rows)
            canvas.text([token] * medium.tokens)
        elif not medium.audio_tokens:
            place(medium, "features", canvas.length, rows)
            canvas.put(np.full(medium.tokens, token), _grid(layout, medium) + canvas.free)
        else:
            canvas.beside(layout.audio_start)
            start, position = canvas.length, canvas.free
            video, sound = _grid(layout, medium), np.arange(medium.audio_tokens)
            heard: list[np.ndarray[Any, np.dtype[np.bool_]]] = []
            for pictures, track in _turns(layout, video[0], sound):
                canvas.put(np.full(len(pictures), layout.video), video[:, pictures] + position)
                canvas.put(np.full(len(track), layout.audio), np.broadcast_to(track + position, (3, len(track))))
                heard += [np.zeros(len(pictures), bool), np.ones(len(track), bool)]
            of_sound = np.concatenate(heard)
            place(medium, "features", start, np.flatnonzero(~of_sound))
            place(medium, "audio", start, np.flatnonzero(of_sound))
            canvas.text([layout.audio_end])
            # The end of the video stands at the position of the end of its sound.
            if begun < len(ids):
                canvas.beside(ids[begun])
                begun += 1
    if remaining:
        raise invalid_request("The chat template leaves out some of the messages' media.", param="messages")
    canvas.text(ids[begun:])
    return canvas.done(placements, root_of(media))


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


def _grid(layout: Layout, medium: Medium) -> Ints:
    """Positions [3, tokens] of an image or a video, counted from its first token's."""
    t, h, w = medium.grid[0], medium.grid[1] // layout.merge, medium.grid[2] // layout.merge
    if t * h * w != medium.tokens:
        raise ValueError(f"a grid of {medium.grid} patches has {t * h * w} tokens, not {medium.tokens}")
    seconds = np.float32(medium.second_per_grid if medium.modality == "video" else 1)
    axes = np.indices((t, h, w)).reshape(3, -1)
    axes[0] = (axes[0].astype(np.float32) * seconds * np.float32(layout.positions_per_s)).astype(np.int64)
    return axes


def _turns(layout: Layout, video: Ints, sound: Ints) -> list[tuple[Ints, Ints]]:
    """A video's tokens and its sound's by turns, a chunk of seconds of each at a time: pairs of places."""
    per_chunk = int(layout.positions_per_s * layout.chunk_s)
    pictures, track = _chunks(video, per_chunk), _chunks(sound, per_chunk)
    count = max(len(pictures), len(track))
    none = np.empty(0, np.int64)
    pictures += [none] * (count - len(pictures))
    track += [none] * (count - len(track))
    return list(zip(pictures, track, strict=True))


def _chunks(times: Ints, per_chunk: int) -> list[Ints]:
    """Places of ascending times, cut where one reaches the next multiple of ``per_chunk``: one cut at most a place, so
    that a leap over several multiples is made up for place by place, as the reference does it."""
    cuts: list[int] = []
    for place, time in enumerate(times):
        if time >= (len(cuts) + 1) * per_chunk:
            cuts.append(place)
    return np.split(np.arange(len(times)), cuts)
