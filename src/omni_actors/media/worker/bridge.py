"""Media in pieces: the media process cuts them, and the bridge of the outgoing edges joins them.

A clip of half an hour is 115 MB. One payload of such a size would occupy the media process while it is written into
shared memory, and fill the arena.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from omni_actors.connectors.payload import Payload
from omni_actors.media.limits import PIECE

_PICTURES_PIECE = 4 * PIECE
"""Bytes of a piece of pictures, enough for a common image or a few frames. A single piece is copied once less."""

_WHOLE = {"pcm": {"samples": "length"}, "image": {"pixels": "length"}, "video": {"frames": "length"}}
_SOUND = {"samples": "audio_length"}


def _lengths(payload: Payload) -> dict[str, int]:
    """Return the length of the first axis of each tensor in the whole. A video with sound has two tensors."""
    names = _WHOLE[payload.kind] | (_SOUND if "audio_length" in payload.meta else {})
    return {name: payload.meta[item] for name, item in names.items()}


def cut(whole: Payload) -> deque[Payload]:
    """Cut a medium's payload into views along the first axis of each tensor in turn, each with all metadata."""
    most = PIECE if whole.kind == "pcm" else _PICTURES_PIECE
    if whole.nbytes <= most:
        return deque([whole])
    pieces: deque[Payload] = deque()
    for name, tensor in whole.tensors.items():
        rows = max(1, most // max(1, tensor[:1].nbytes))
        for at in range(0, len(tensor), rows):
            pieces.append(Payload(whole.kind, whole.meta, {name: tensor[at : at + rows]}))
    return pieces


class JoinMedia:
    """A bridge that joins the pieces of :func:`cut` to one payload for each clip, image or video.

    A single piece passes unchanged. The joined tensors of several pieces are the bridge's own copy.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, npt.NDArray[np.generic]] = {}
        self._filled: dict[str, int] = {}

    def feed(self, payload: Payload | None, end: bool) -> list[Payload]:
        whole = [] if payload is None else self._add(payload)
        if end and self._filled:
            raise ValueError("the last medium is incomplete")
        return whole

    def _add(self, payload: Payload) -> list[Payload]:
        lengths = _lengths(payload)
        if not self._filled and all(len(payload.tensors.get(name, ())) == count for name, count in lengths.items()):
            return [payload]
        for name, piece in payload.tensors.items():
            if name not in self._tensors:
                self._tensors[name] = np.empty((lengths[name], *piece.shape[1:]), piece.dtype)
            at = self._filled.get(name, 0)
            self._tensors[name][at : at + len(piece)] = piece
            self._filled[name] = at + len(piece)
        if any(self._filled.get(name) != count for name, count in lengths.items()):
            return []
        whole = Payload(payload.kind, payload.meta, self._tensors)
        self._tensors, self._filled = {}, {}
        return [whole]
