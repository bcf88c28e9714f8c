"""Whether anybody speaks: Silero's voice activity net, and loudness where it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]

RATE = 16_000
FRAME = 512
CONTEXT = 64

SILENCE = 1e-3
"""Full scale is 1. What never gets louder than this (-60 dB) is silence to everybody."""


class VoiceActivity:
    """Stateless between calls; ``folder`` holds ``silero_vad.onnx`` (without it only loudness counts)."""

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

    def speech_in(self, samples: Samples) -> bool:
        """Whether some 32 ms of ``samples`` (float32 [n], 16 kHz) are voice. Returns at the first that are."""
        if not samples.size or float(np.abs(samples).max()) < SILENCE:
            return False
        if self._net is None:
            return True
        samples = np.pad(samples, (CONTEXT, -len(samples) % FRAME))
        state = np.zeros((2, 1, 128), np.float32)
        rate = np.array(RATE, np.int64)
        for start in range(0, len(samples) - CONTEXT, FRAME):
            frame = samples[None, start : start + CONTEXT + FRAME]
            probability, state = self._net.run(None, {"input": frame, "state": state, "sr": rate})
            if probability.item() >= self._threshold:
                return True
        return False
