"""Where pictures and a video's sound stand in Qwen2.5-Omni's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from omni_actors.models.common import layout
from omni_actors.models.common.layout import Canvas, Floats, Ints, grid_times
from omni_actors.models.common.multimodal import Medium


@dataclass(frozen=True, slots=True)
class Layout(layout.Layout):
    """``chunk_s``: after so many seconds pictures and sound of a video take turns."""

    chunk_s: float

    @classmethod
    def of(cls, config: Any, tokenizer: Any) -> Layout:
        """Make the layout of a thinker's config and the folder's tokenizer."""
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

    def for_talker(self, config: Any) -> Layout:
        """Return the layout of the same prompts as a talker with this config counts positions."""
        return replace(self, positions_per_s=config.position_id_per_seconds, chunk_s=config.seconds_per_chunk)

    def grid(self, medium: Medium) -> Floats:
        axes = grid_times(self, medium)
        axes[0] = np.trunc(axes[0])
        return axes

    def with_sound(self, canvas: Canvas, medium: Medium, later: Sequence[Medium]) -> None:
        """The marks of the sound's begin and end stand at the positions of those of the video's."""
        canvas.free -= np.float32(1)
        canvas.text([self.audio_start])
        video = self.grid(medium)
        sound = np.broadcast_to(np.arange(medium.audio_tokens, dtype=np.float32), (3, medium.audio_tokens))
        turns = self._turns(video[0], sound[0])
        order = np.concatenate(turns)
        heard = order >= medium.tokens
        canvas.place(medium, "features", np.flatnonzero(~heard))
        canvas.place(medium, "audio", np.flatnonzero(heard))
        along = np.concatenate((video, sound), axis=1)[:, order] + canvas.free
        # Text goes on behind the last turn, which need not have the highest position of all.
        canvas.put(np.where(heard, self.audio, self.video), along, along[:, -len(turns[-1]) :].max())
        canvas.text([self.audio_end])
        canvas.free -= np.float32(1)

    def _turns(self, video: Floats, sound: Floats) -> list[Ints]:
        """A chunk of seconds of pictures, then one of sound, and so on: places in the concatenation of both."""
        nothing = np.empty(0, np.int64)
        pairs = zip_longest(self._chunks(video), self._chunks(sound), fillvalue=nothing)
        return [turn for seen, heard in pairs for turn in (seen, heard + len(video)) if len(turn)]

    def _chunks(self, times: Floats) -> list[Ints]:
        """Cut places of ascending times where a place reaches the next multiple of a chunk's positions: one cut at most
            a
        place, so that a leap over several multiples is made up for place by place, as in the reference."""
        per_chunk = int(self.positions_per_s * self.chunk_s)
        cuts: list[int] = []
        for place, time in enumerate(times):
            if time >= (len(cuts) + 1) * per_chunk:
                cuts.append(place)
        return np.split(np.arange(len(times)), cuts)
