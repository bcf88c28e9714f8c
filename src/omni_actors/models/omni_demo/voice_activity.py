"""Voice activity detection: the parts of a clip with a voice, by Silero's net, or by loudness without the net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]

RATE = 16_000
FRAME = 512
"""Samples of one frame, 32 ms: the unit in which voice is found."""

CONTEXT = 64

SILENCE = 1e-3
"""Full scale is 1. What never gets louder than this (-60 dB) is silence to everybody."""


class VoiceActivity:
    """The net, shared by all clips. ``folder`` holds ``silero_vad.onnx`` (without it only loudness counts)."""

    def __init__(self, folder: Path, threshold: float) -> None:
        self._threshold = threshold
        self._net: Any = None
        model = folder / "silero_vad.onnx"
        if model.is_file():
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._net = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def track(self, samples: Samples) -> VoiceTrack:
        """The search for voice in a clip (float32 [n], 16 kHz), which nothing has been heard of yet."""
        return VoiceTrack(self._net, self._threshold, samples)

    def speech_in(self, samples: Samples) -> bool:
        """Whether some 32 ms of ``samples`` (float32 [n], 16 kHz) are voice. Returns at the first that are."""
        track = self.track(samples)
        for frame in range(len(track.voiced)):
            track.hear(frame + 1)
            if track.voiced[frame]:
                return True
        return False


class VoiceTrack:
    """The frames of one clip with voice. ``voiced`` is bool [frames], true only for frames searched so far."""

    def __init__(self, net: Any, threshold: float, samples: Samples) -> None:
        frames = -(-len(samples) // FRAME)
        self.voiced = np.zeros(frames, np.bool_)
        self.heard = 0
        """Frames that have been heard, from the clip's begin."""

        self._net = net
        self._threshold = threshold
        self._samples = samples
        self._state = np.zeros((2, 1, 128), np.float32)

    def hear(self, end: int) -> None:
        """Hear the clip up to frame ``end`` (not with it), as far as the clip goes."""
        end = min(end, len(self.voiced))
        while self.heard < end:
            self.voiced[self.heard] = self._voice(self.heard)
            self.heard += 1

    def runs(self, gap_s: float, first: int = 0, least_s: float = 0.0) -> list[tuple[int, int]]:
        """The samples ``begin … end - 1`` of each stretch of voice heard so far, from frame ``first`` on.

        What has at most ``gap_s`` seconds between is one stretch; one shorter than ``least_s`` is left out.
        """
        voiced = self.voiced[first : self.heard]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], voiced, [False])).astype(np.int8)))
        starts, ends = ((first + edges[offset::2]) * FRAME for offset in (0, 1))
        whole = np.flatnonzero(starts[1:] - ends[:-1] > gap_s * RATE) if len(starts) else starts
        found = zip(starts[np.append(0, whole + 1)], ends[np.append(whole, -1)], strict=True) if len(starts) else ()
        return [(int(start), int(end)) for start, end in found if end - start >= least_s * RATE]

    def _voice(self, frame: int) -> bool:
        start = frame * FRAME
        samples = self._samples[max(0, start - CONTEXT) : start + FRAME]
        if not samples.size or float(np.abs(samples).max()) < SILENCE:
            self._state[:] = 0.0  # the net's own state at the begin of a clip
            return False
        if self._net is None:
            return True
        missing = max(0, CONTEXT - start)
        samples = np.pad(samples, (missing, CONTEXT + FRAME - missing - len(samples)))[None]
        inputs = {"input": samples, "state": self._state, "sr": np.array(RATE, np.int64)}
        probability, self._state = self._net.run(None, inputs)
        return bool(probability.item() >= self._threshold)
