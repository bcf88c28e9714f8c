"""The conformance kit of omni-actors, run on the pipeline with this engine."""

from __future__ import annotations

import pytest

from omni_actors.author import Prompt, Sampling
from omni_actors.testing import PipelineConformance, Sample


@pytest.mark.slow
@pytest.mark.deadline(120)
class TestMarkov(PipelineConformance):
    pipeline = "omni_markov.pipeline:PIPELINE"
    samples = (
        Sample({"prompt": Prompt(text="The robot "), "sampling": Sampling(max_tokens=24, seed=1)}, task="completion"),
        Sample({"prompt": Prompt(text="zzz"), "sampling": Sampling(max_tokens=5, seed=2)}, task="completion"),
        Sample({"prompt": Prompt(text="The sea "), "sampling": Sampling(temperature=0.0, seed=3)}, task="completion"),
    )
