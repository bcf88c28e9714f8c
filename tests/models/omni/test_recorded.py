"""An omni pipeline whose decode steps are replayed says, and sounds like, what it does when they run as written.

Here are all the decoders that prepare more than tokens: a thinker with features, positions of three axes and vectors
for the next stage, a talker that hears it, mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.omni.comparison import FAMILIES, Comparison
from tests.models.omni.line import Line
from tests.worker.engines.recording import RecordingPlatform

from omni_actors.models.common.depth import DepthDecoder, DepthSampling, Draw
from omni_actors.protocol.params import Speech

RECORDING = f"{RecordingPlatform.__module__}:{RecordingPlatform.__qualname__}"
CASES = ("text", "image", "video with sound", "audio")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_replayed_steps_of_an_omni_pipeline(
    family: str,
    compared: Callable[[str], Comparison],
    tiny_model: Callable[[str], Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = compared(family)
    asks = [plain.case(name).ask() for name in CASES]
    asks += [replace(asks[0], speech=Speech(voice=plain.cases[0].voice, max_tokens=12, temperature=0.9, seed=5))]
    expected = plain.line.run(asks, concurrency=3)
    described = FAMILIES[family]
    line = Line(described.pipeline, tiny_model(family), described.options, RECORDING)
    assert "not recorded" not in caplog.text
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
    ours, theirs = (it.adapter("talker").depth for it in (line, plain.line))
    if theirs is not None:  # a frame has several codes
        check_depth(ours, theirs)


def check_depth(ours: DepthDecoder, theirs: DepthDecoder) -> None:
    """Greedy frames, drawn ones, and both at once; as many as are recorded, fewer, and more."""
    width = theirs._embeddings[0].shape[1]
    torch.manual_seed(0)
    for count in (1, 3, 4, 11):
        hidden, first = torch.randn(2, count, width)
        for temperatures in ([0.0], [1.0], [0.0, 0.8, 1.0]):
            draws = [Draw(DepthSampling(temperatures[i % len(temperatures)]), 7, i) for i in range(count)]
            found, expected = ours(hidden, first, draws), theirs(hidden, first, draws)
            assert torch.equal(found[0], expected[0])
            torch.testing.assert_close(found[1], expected[1])
