"""Mixing: the channels of a recording to one, so that whatever is heard in it stays heard."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

BLOCKS_PER_S = 10
"""How often it is decided how the channels are added up."""
FADES_PER_S = 100
"""A changed decision takes effect over one of these, so that it makes no click."""
_LOST = 0.1
"""Below this share of the channels' mean energy, their mean has lost what was in them. (Channels that have nothing to
do with each other leave half of it; below a tenth they are opposed: correlated by less than -0.8.)"""
_KEPT = 0.3
"""Above this share they are not opposed, or not any more."""
_SILENT = 1e-10
"""Mean square below which nothing can be told."""


class Mixer:
    """The mean of all channels; where that cancels out, the mean of the channels with the opposed ones turned round.

    A microphone that is wired the wrong way records the same sound on two channels in opposite phase, and their mean is
    silence. So for each block of a tenth of a second (counted from the beginning, whatever the pieces are that the
    sound comes in) the energy of the mean is compared with that of the channels. When less than :data:`_LOST` of it is
    left, channels that run against the loudest one are subtracted instead of added; that stays until a block whose mean
    has more than :data:`_KEPT` of it. All other sound, ordinary stereo among it, is the plain mean to the bit.
    """

    def __init__(self, rate: int, channels: int) -> None:
        self.rate = rate
        self.channels = channels
        self._block = max(1, rate // BLOCKS_PER_S)
        self._fade = max(1, rate // FADES_PER_S)
        self._pieces: list[Float32] = []
        self._held = 0
        self._signs = np.ones(channels, np.float32)

    def add(self, sound: Float32) -> Float32:
        """Take samples [channels, n] and give those that are mixed, [m]: at most a block is held back."""
        if self.channels == 1:
            return np.ascontiguousarray(sound[0])
        self._pieces.append(sound)
        self._held += sound.shape[1]
        if self._held < self._block:
            return np.empty(0, np.float32)
        whole = self._take()
        full = whole.shape[1] // self._block * self._block
        if full < whole.shape[1]:
            self._pieces = [whole[:, full:]]
            self._held = whole.shape[1] - full
        return np.concatenate([self._mix(whole[:, at : at + self._block]) for at in range(0, full, self._block)])

    def finish(self) -> Float32:
        """Give the rest."""
        return self._mix(self._take()) if self._held else np.empty(0, np.float32)

    def _take(self) -> Float32:
        whole = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces, axis=1)
        self._pieces, self._held = [], 0
        return whole

    def _mix(self, block: Float32) -> Float32:
        block = np.ascontiguousarray(block)  # the same sums to the last bit, wherever it lay
        mean: Float32 = block.mean(axis=0, dtype=np.float32)
        before, now = self._signs, self._decide(block, mean)
        self._signs = now
        if before is now and now.min() > 0:
            return mean
        mixed = np.asarray(now @ block / self.channels, np.float32)
        if before is not now:
            count = min(self._fade, block.shape[1])
            rise = np.linspace(0.0, 1.0, count, endpoint=False, dtype=np.float32)
            old = np.asarray(before @ block[:, :count] / self.channels, np.float32)
            mixed[:count] = rise * mixed[:count] + (1 - rise) * old
        return mixed

    def _decide(self, block: Float32, mean: Float32) -> Float32:
        """The sign of each channel in this block: those of the last one, where nothing speaks against them."""
        energies = np.einsum("ij,ij->i", block, block) / block.shape[1]
        loud, left = float(energies.mean()), float(np.vdot(mean, mean)) / block.shape[1]
        opposed = self._signs.min() < 0
        if not loud > _SILENT or (left > _LOST * loud and not opposed) or (left < _KEPT * loud and opposed):
            return self._signs
        signs = np.ones(self.channels, np.float32)
        if not opposed:
            signs[block @ block[int(energies.argmax())] < 0] = -1.0
        return signs
