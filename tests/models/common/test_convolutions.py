"""What a stack of convolutions looks at: enough, and not much more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omni_actors.models.common.convolutions import reach

FRAMES = 40


def symmetric() -> nn.Module:
    """DAC's kind: padded on both sides."""
    return nn.Sequential(
        nn.Conv1d(2, 4, 7, padding=3),
        nn.ConvTranspose1d(4, 4, 8, stride=4, padding=2),
        nn.Conv1d(4, 4, 7, dilation=3, padding=9),
        nn.ConvTranspose1d(4, 2, 6, stride=3, padding=2, output_padding=1),
        nn.Conv1d(2, 1, 7, padding=3),
    ).eval()


def affected(stack: nn.Module, frame: int) -> torch.Tensor:
    """The samples in which a frame has a part."""
    torch.manual_seed(0)
    base = torch.randn(1, 2, FRAMES)
    other = base.clone()
    other[..., frame] += 1
    with torch.inference_mode():
        return (stack(base) != stack(other)).any(dim=1).nonzero()[:, 1]


@pytest.mark.parametrize("frame", [15, 20])
def test_a_frame_reaches_no_further_than_it_says_and_almost_so_far(frame: int) -> None:
    stack = symmetric()
    rate, before, behind = reach(stack, causal=False)
    assert rate == 12
    samples = affected(stack, frame)
    # What `before` frames in front of a sample's frame have a part in, the frame itself has in those behind it.
    assert (samples[-1] // rate) - frame in (before - 1, before)
    assert frame - (samples[0] // rate) in (behind - 1, behind)


def test_causal_stacks_look_back_only() -> None:
    rate, before, behind = reach(nn.Sequential(nn.Conv1d(1, 1, 7), nn.ConvTranspose1d(1, 1, 8, stride=4)), causal=True)
    assert (rate, behind) == (4, 0)
    assert before == 8  # six of the first, and under two of the second
