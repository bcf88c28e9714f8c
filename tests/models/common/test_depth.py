"""Residual codes are drawn from the distribution that their settings describe."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni_actors.models.common.depth import DepthSampling, Draw, _draw

LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 1.5, 0.0])
DRAWS = 4000


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (DepthSampling(1.0, 0, 1.0), [0, 1, 2, 3, 4, 5]),
        (DepthSampling(0.7, 0, 1.0), [0, 1, 2, 3, 4, 5]),
        (DepthSampling(1.0, 3, 1.0), [0, 4, 2]),
        (DepthSampling(1.0, 0, 0.6), [0, 4]),
        (DepthSampling(1.3, 4, 0.9), [0, 4, 2, 1]),
        (DepthSampling(0.0, 0, 1.0), [0]),
    ],
)
def test_codes_have_their_probabilities(sampling: DepthSampling, kept: list[int]) -> None:
    want = torch.zeros(len(LOGITS))
    want[kept] = (LOGITS[kept] / max(sampling.temperature, 1e-6)).softmax(0)
    uniform = torch.from_numpy(np.random.default_rng(0).random(DRAWS, np.float32))
    draws = [Draw(sampling, 0, place) for place in range(DRAWS)]
    codes = _draw(LOGITS.repeat(DRAWS, 1), draws, uniform)
    found = torch.bincount(codes, minlength=len(LOGITS)) / DRAWS
    assert set(codes.unique().tolist()) == set(kept)
    torch.testing.assert_close(found, want, rtol=0, atol=0.03)


def test_rows_of_a_batch_have_their_own_settings() -> None:
    draws = [
        Draw(DepthSampling(0.0), 0, 0),
        Draw(DepthSampling(1.0, 1, 1.0), 0, 0),
        Draw(DepthSampling(5.0, 0, 1.0), 0, 0),
    ]
    codes = _draw(LOGITS.repeat(3, 1), draws, torch.full((3,), 0.999))
    assert codes.tolist() == [0, 0, 3]
