"""An omni pipeline whose decode steps are replayed says, and sounds like, what it does when they run as written.

Here are all the decoders that prepare more than tokens: a thinker with features, positions of three axes and vectors
for the next stage, a talker that hears it, mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.omni.comparison import FAMILIES, Comparison
from tests.models.omni.line import Line
from tests.worker.engines.recording import RecordingPlatform

RECORDING = f"{RecordingPlatform.__module__}:{RecordingPlatform.__qualname__}"
CASES = ("text", "image", "video with sound", "audio")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_replayed_steps_of_an_omni_pipeline(
    family: str, compared: Callable[[str], Comparison], tiny_model: Callable[[str], Path]
) -> None:
    plain = compared(family)
    asks = [plain.case(name).ask() for name in CASES]
    expected = plain.line.run(asks, concurrency=3)
    described = FAMILIES[family]
    line = Line(described.pipeline, tiny_model(family), described.options, RECORDING)
    found = line.run(asks, concurrency=3)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.error is None
        assert ours.tokens == theirs.tokens
        assert np.array_equal(ours.joined("talker", "codes"), theirs.joined("talker", "codes"))
        for stage, tensor in (("thinker", "states"), (line.last, "samples")):
            torch.testing.assert_close(ours.joined(stage, tensor), theirs.joined(stage, tensor), atol=1e-4, rtol=1e-4)
    assert line.idle()
    for stage in ("thinker", "talker"):
        counters = line.engines[stage].counters()
        assert counters["recorded_steps_total"] > counters["steps_total"] / 3, stage
