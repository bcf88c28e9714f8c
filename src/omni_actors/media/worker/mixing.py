"""Mixing of a recording's channels to one, without losing sound that cancels out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

BLOCKS_PER_S = 10
"""Decisions per second on how the channels are added up."""
FADES_PER_S = 100
"""The reciprocal of the seconds over which a changed decision fades in, so that the change makes no click."""
_LOST = 0.1
"""The share of the channels' mean energy below which their mean has lost their sound.

Unrelated channels leave half of the energy. Below a tenth the channels are opposed: correlated by less than -0.8."""
_KEPT = 0.3
"""The share of the mean energy above which channels are not opposed, or not any more."""
_SILENT = 1e-10
"""The mean square below which a block is silent and decides nothing."""


class Mixer:
    """A mixer to the mean of all channels, with opposed channels inverted where the mean cancels out.

    A wrongly wired microphone records the same sound on two channels in opposite phase, and the mean of the channels is
    silence. So for each block of a tenth of a second (counted from the beginning, however the sound is cut) the energy
    of the mean is compared with the energy of the channels. When less than :data:`_LOST` is left, channels opposed to
    the loudest channel are subtracted instead of added, until a block whose mean has more than :data:`_KEPT` of the
    energy. All other sound, ordinary stereo included, is the plain mean to the bit.
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
        """Take samples [channels, n] and return mixed samples [m]. At most a block is held back."""
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
        """Return the remaining mixed samples."""
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
        """Return the sign of each channel in this block: the signs of the last block, unless the energy contradicts."""
        energies = np.einsum("ij,ij->i", block, block) / block.shape[1]
        loud, left = float(energies.mean()), float(np.vdot(mean, mean)) / block.shape[1]
        opposed = self._signs.min() < 0
        if not loud > _SILENT or (left > _LOST * loud and not opposed) or (left < _KEPT * loud and opposed):
            return self._signs
        signs = np.ones(self.channels, np.float32)
        if not opposed:
            signs[block @ block[int(energies.argmax())] < 0] = -1.0
        return signs
