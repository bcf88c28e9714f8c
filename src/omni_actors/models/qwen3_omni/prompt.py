"""Where pictures and a video's sound stand in Qwen3-Omni's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omni_actors.models.common import layout
from omni_actors.models.common.layout import Canvas, Floats, Ints, grid_times
from omni_actors.models.common.multimodal import Medium


@dataclass(frozen=True, slots=True)
class Layout(layout.Layout):
    """The order and positions of a prompt's tokens.

    With ``talker``, positions are as transformers' ``generate`` gives them to the talker: ``generate`` does not tell
    the talker that a video's sound stands among its pictures, so sound is counted like text, unless an image
    follows."""

    talker: bool = False

    @classmethod
    def of(cls, config: Any, tokenizer: Any) -> Layout:
        """Make the layout of a thinker's config and the folder's tokenizer."""
        return cls(
            image=config.image_token_id,
            video=config.video_token_id,
            audio=config.audio_token_id,
            audio_start=config.audio_start_token_id,
            audio_end=tokenizer.convert_tokens_to_ids(tokenizer.audio_eos_token),
            merge=config.vision_config.spatial_merge_size,
            positions_per_s=config.position_id_per_seconds,
        )

    def for_talker(self, config: Any) -> Layout:
        """Return the layout of the same prompts as a talker with this config counts positions."""
        return replace(self, positions_per_s=config.position_id_per_seconds, talker=True)

    def grid(self, medium: Medium) -> Floats:
        return grid_times(self, medium)

    def with_sound(self, canvas: Canvas, medium: Medium, later: Sequence[Medium]) -> None:
        canvas.text([self.audio_start])
        heard = self._sound_track(medium)
        canvas.place(medium, "features", np.flatnonzero(~heard))
        canvas.place(medium, "audio", np.flatnonzero(heard))
        tokens = np.where(heard, self.audio, self.video)
        if self.talker and not any(it.modality == "image" for it in later):
            canvas.text(tokens)
        else:
            canvas.put(tokens, *self._positions(medium, canvas.free))
        canvas.text([self.audio_end])

    def _sound_track(self, medium: Medium) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mark the tokens of a video that belong to its sound track. Each grid comes at its time, followed by the sound
            up to
        the next grid; a token of sound is one position."""
        per_grid = medium.tokens // medium.grid[0]
        seen = np.repeat(np.arange(medium.grid[0]), per_grid) * medium.second_per_grid * self.positions_per_s
        return _in_time(seen, np.arange(medium.audio_tokens, dtype=np.float64)) >= medium.tokens

    def _positions(self, medium: Medium, start: np.float32) -> tuple[Floats, np.float32]:
        """Return the positions [3, tokens] of a video with its sound track from ``start`` on, and the position after
            which
        text goes on: the highest one of the last pictures or the last sound, which need not be the highest of all."""
        video = self.grid(medium) + start
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
