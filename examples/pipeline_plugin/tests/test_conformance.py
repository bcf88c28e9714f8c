"""The conformance kit of omni-actors, run on this pipeline."""

from __future__ import annotations

import pytest

from omni_actors.author import Speech
from omni_actors.testing import PipelineConformance, Sample


@pytest.mark.slow
@pytest.mark.deadline(120)
class TestTones(PipelineConformance):
    pipeline = "omni_tones.pipeline:PIPELINE"
    samples = (
        Sample({"speech": Speech(text="0123 456*#"), "parameters": {"tone_ms": 30}}, task="speech", outputs=("audio",)),
        Sample({"speech": Speech(text="ABCD")}, task="speech", outputs=("audio",)),
    )
