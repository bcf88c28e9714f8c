"""Residual codes are drawn from the distribution that their settings describe."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni_actors.models.common.depth import DepthSampling, _draw, columns_of

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
    uniform = np.random.default_rng(0).random((DRAWS, 2), np.float32)
    codes = _draw(LOGITS.repeat(DRAWS, 1), 1, *columns_of(uniform, [sampling] * DRAWS, torch.device("cpu")))
    found = torch.bincount(codes, minlength=len(LOGITS)) / DRAWS
    assert set(codes.unique().tolist()) == set(kept)
    torch.testing.assert_close(found, want, rtol=0, atol=0.03)


def test_rows_of_a_batch_have_their_own_settings() -> None:
    settings = [DepthSampling(0.0), DepthSampling(1.0, 1, 1.0), DepthSampling(5.0, 0, 1.0)]
    columns = columns_of(np.full((3, 1), 0.999, np.float32), settings, torch.device("cpu"))
    codes = _draw(LOGITS.repeat(3, 1), 0, *columns)
    assert codes.tolist() == [0, 0, 3]
